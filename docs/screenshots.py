"""The pictures of the pages, taken anew: `python -m docs.screenshots [--all] [--out docs/images] [--pipeline digits]`.

It starts a Prefect server, MLflow and a worker in a folder of its own, deploys this project, fills the deployment's
form in headless Chromium, waits for the retrain that this starts, and takes a picture of each page that a person looks
at: the servers', both reports, cards of notebooks, the terminal's words, and the site, in light and dark.

It needs `pip install 'headway[screenshots]'` and a Chromium of the system's; nothing is downloaded, and nothing is left
running.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import html
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from headway.data_contracts.store.errors import EnvironmentProblem, HeadwayError
from headway.data_contracts.store.publication import Workspace
from headway.flows.console.environment import prepare
from headway.flows.prefect_api.serve import ServerProcess, mlflow_server, prefect_server, running, wait_until_ready
from headway.flows.prefect_api.server_password import new_password
from headway.flows.python_api import load_table_model
from headway.flows.report.summary import RetrainSummary
from headway.tasks.registry import mlflow_store
from headway.training.launch.base.ports import free_port

try:
    from playwright.sync_api import Browser, HttpCredentials, Page, sync_playwright
    from playwright.sync_api import TimeoutError as TooLate
except ModuleNotFoundError as error:
    raise SystemExit(f"docs.screenshots needs {error.name}: pip install 'headway[screenshots]'") from None

REPOSITORY = Path(__file__).resolve().parents[1]
QUIET = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
)
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
PATIENCE_S = 900.0
WIDTH_PX, HEIGHT_PX = 1280, 800
NO_ASSISTANT = """
localStorage.setItem('mlflow.assistant.fab.autoOpenedOnFirstLoad_v1', 'true');
localStorage.setItem('mlflow.assistant.panelOpen_v1', 'false');
"""
"""It covers a third of every page of MLflow's on the first visit."""
LOGGED_IN = "if (location.origin === %s) localStorage.setItem('prefect-password', btoa(%s));"
"""As Prefect's own page for the password leaves it."""
SETTLES_MS = 4000.0
"""A page is drawn with transitions after what was waited for is there; MLflow's never stops asking its server."""
CLIENT = "screenshots"
"""Who asks Prefect for a token against forged requests."""
TABLE = "breast-cancer"
"""A shipped pipeline whose model is one of tables."""
SITE = ("index", "tutorial", "how-to/deploy", "reference/cli", "concepts/promises")
IN_DOCS = frozenset({"retrain", "model-version", "search-report"})
NOTE = "A picture for the README"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=REPOSITORY / "docs" / "images", help="where the pictures go")
    parser.add_argument("--all", action="store_true", help="also those that the docs leave out")
    parser.add_argument("--pipeline", default="digits", help="a shipped pipeline")
    given = parser.parse_args()
    prepare()
    try:
        take_pictures(given.out, given.pipeline, None if given.all else IN_DOCS)
    except HeadwayError as error:
        sys.exit(f"docs.screenshots: {error}")


def take_pictures(out: Path, pipeline: str, wanted: frozenset[str] | None) -> None:
    executable = chromium()  # before minutes are spent on servers
    out.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="headway-screenshots-") as folder,
        deployed(Path(folder), password := new_password()) as (prefect, mlflow),
        sync_playwright() as player,
    ):
        browser = player.chromium.launch(executable_path=executable, args=list(QUIET))
        take_all(Camera(browser, out, wanted, prefect, mlflow, password), prefect, mlflow, pipeline)


def chromium() -> str:
    """Raises `EnvironmentProblem`: none is installed."""
    found = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if found is None:
        raise EnvironmentProblem("there is no Chromium.", advice="Install one: `apt-get install chromium`.")
    return found


@contextlib.contextmanager
def deployed(folder: Path, password: str) -> Iterator[tuple[ServerProcess, ServerProcess]]:
    """Both servers with the project deployed and a worker at work, all of it below `folder`."""
    workspace = Workspace.create(str(folder / "workspace"))
    prefect, mlflow = prefect_server(0, password), mlflow_server(workspace, free_port(), password)
    os.environ |= {
        "PREFECT_HOME": str(folder / "prefect"),
        "PREFECT_API_URL": f"{prefect.url}/api",
        "PREFECT_API_AUTH_STRING": password,
        "PREFECT_WORKER_QUERY_SECONDS": "1",
        "HEADWAY_WORKSPACE": workspace.uri,
        "HEADWAY_PROJECT": str(REPOSITORY),
    }
    worker = ServerProcess(
        name="worker",
        port=0,
        option="",
        health="",
        command=(sys.executable, "-m", "prefect", "worker", "start", "--pool", "headway"),
        environment={},
    )
    with running(prefect, folder) as one, running(mlflow, folder) as other:
        for server, process in ((prefect, one), (mlflow, other)):
            wait_until_ready(server, process, folder)
        subprocess.run((Path(sys.executable).with_name("headway"), "deploy", "production"), check=True)
        with running(worker, folder):
            yield prefect, mlflow


class Camera:
    """A browser window that takes pictures of what people look at.

    Args:
        out: the folder for them.
        wanted: their names; None: all.
        password: of both servers, which each page of the window is logged in with.
    """

    def __init__(
        self,
        browser: Browser,
        out: Path,
        wanted: frozenset[str] | None,
        prefect: ServerProcess,
        mlflow: ServerProcess,
        password: str,
    ) -> None:
        user, _, secret = password.partition(":")
        self.page: Page = browser.new_page(
            viewport={"width": WIDTH_PX, "height": HEIGHT_PX},
            color_scheme="light",
            http_credentials=HttpCredentials(username=user, password=secret, origin=mlflow.url),
        )
        self.page.add_init_script(LOGGED_IN % (json.dumps(prefect.url), json.dumps(password)))
        self.page.set_default_timeout(1000 * PATIENCE_S)
        self.page.add_init_script(NO_ASSISTANT)
        self._out, self._wanted = out, wanted

    def is_wanted(self, name: str) -> bool:
        return self._wanted is None or bool({name, f"{name}-dark"} & self._wanted)

    def both(self, name: str, url: str, height_px: int = HEIGHT_PX) -> None:
        """A page of ours, which loads nothing, in light and dark."""
        if not self.is_wanted(name):
            return
        window, browser = self.page, self.page.context.browser
        assert browser is not None
        schemes: tuple[Literal["light", "dark"], ...] = ("light", "dark")
        for scheme in schemes:
            # A window of its own: the site keeps the scheme that it was first seen in.
            self.page = browser.new_page(color_scheme=scheme)
            self.page.goto(url)
            self.take(name if scheme == "light" else f"{name}-dark", height_px)
            self.page.close()
        self.page = window

    def take(self, name: str, height_px: int = HEIGHT_PX) -> None:
        if self._wanted is not None and name not in self._wanted:
            return
        self.page.set_viewport_size({"width": WIDTH_PX, "height": height_px})
        self.page.mouse.move(WIDTH_PX - 1, 1)
        self.page.wait_for_timeout(SETTLES_MS)
        path = self._out / f"{name}.png"
        self.page.screenshot(path=path, animations="disabled")
        print(f"{path}  {path.stat().st_size:,} bytes", flush=True)


def take_all(camera: Camera, prefect: ServerProcess, mlflow: ServerProcess, pipeline: str) -> None:
    page = camera.page
    deployment = api(prefect, f"deployments/name/retrain/{pipeline}")["id"]
    page.goto(f"{prefect.url}/deployments/deployment/{deployment}/run")
    # Innermost is last: the form's fields are no labels of their inputs.
    note = page.locator(".schema-form-property", has=page.get_by_text("Note (Optional)", exact=True)).last
    note.locator("textarea").fill(NOTE)
    page.get_by_text("Pipeline", exact=True).last.scroll_into_view_if_needed()
    camera.take("form", 2000)
    submit(page)
    take_results(camera, prefect, mlflow, pipeline, wait_for_run(prefect, deployment))


def submit(page: Page) -> None:
    """Click until the form is gone: before it has asked its server everything, it hears nothing."""
    deadline = time.monotonic() + PATIENCE_S
    while "/run" in page.url and time.monotonic() < deadline:
        page.wait_for_timeout(SETTLES_MS)
        with contextlib.suppress(TooLate):
            page.get_by_role("button", name="Submit").click(timeout=SETTLES_MS)
            page.wait_for_url("**/*?tab=Runs", timeout=5 * SETTLES_MS)


def take_results(camera: Camera, prefect: ServerProcess, mlflow: ServerProcess, pipeline: str, run: str) -> None:
    page = camera.page
    page.goto(f"{prefect.url}/runs/flow-run/{run}")
    page.get_by_text("Completed").first.wait_for()
    camera.take("log", 1400)
    page.get_by_text("Artifacts", exact=True).first.click()
    camera.take("retrain", 1000)
    page.goto(f"{mlflow.url}/#/models/{pipeline}")
    page.get_by_text("Registered at").first.wait_for()
    camera.take("model")
    page.goto(f"{mlflow.url}/#/models/{pipeline}/versions/1")
    page.get_by_text("Registered At").first.wait_for()
    camera.take("model-version", 640)
    workspace = Workspace.existing(os.environ["HEADWAY_WORKSPACE"])
    client = mlflow_store.connect(mlflow_store.default_tracking_uri(workspace), must_exist=True)
    tracked = client.get_run(str(client.get_model_version(pipeline, "1").run_id)).info
    at = f"{mlflow.url}/#/experiments/{tracked.experiment_id}"
    for name, place in (("mlflow-run", ""), ("mlflow-charts", "/model-metrics"), ("mlflow-system", "/system-metrics")):
        page.goto(f"{at}/runs/{tracked.run_id}{place}")
        page.get_by_text(str(tracked.run_name)).first.wait_for()
        camera.take(name, 1300)
    page.goto(f"{at}/runs")
    page.get_by_text(str(tracked.run_name)).first.wait_for()
    camera.take("mlflow-runs")
    take_ours(camera, workspace, pipeline)


def take_ours(camera: Camera, workspace: Workspace, pipeline: str) -> None:
    """What Headway writes itself: it is read without a server."""
    (newest,) = sorted(workspace.local_path("ledger").glob("*/summary.json"))[-1:]
    summary = RetrainSummary.model_validate_json(newest.read_bytes())
    for name in ("contract", "evaluation"):
        camera.both(f"{name}-report", Path(summary.reports[name]).as_uri(), 1500)
    card = "<!doctype html><html style='color-scheme: light dark'><body style='font-family: sans-serif'>"
    model = load_table_model(f"models:/{summary.model}/{summary.version}", workspace.uri) if pipeline == TABLE else None
    cards = [summary._repr_html_(), *([] if model is None else [model._repr_html_()])]
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        page.write_text(card + "<br>".join(cards))
        camera.both("notebook", page.as_uri(), 640)
        for command in (("status",), ("plan", pipeline, "--no-rehearse"), ("history", summary.model)):
            program = Path(sys.executable).with_name("headway")
            done = subprocess.run((program, *command), cwd=REPOSITORY, capture_output=True, text=True, check=False)
            said = f"$ headway {' '.join(command)}\n{done.stdout}{done.stderr}"
            page.write_text(f"{card}<pre style='font-size: 13px'>{html.escape(said)}")
            camera.both(command[0], page.as_uri(), 640)
        take_search(camera, Path(folder) / "search")
        take_site(camera, Path(folder) / "site")


def take_search(camera: Camera, project: Path) -> None:
    """The page of the search that the README begins with, as it says."""
    if not camera.is_wanted("search-report"):
        return
    for part in ("deployments", "data_contracts/contracts"):
        shutil.copytree(REPOSITORY / part, project / part)
    (block,) = re.findall(r"```yaml\n(evaluation: .*?)```", (REPOSITORY / "README.md").read_text(), re.DOTALL)
    with (project / "deployments" / "digits.yaml").open("a", encoding="utf-8") as file:
        file.write(f"\n{block}")
    command = (Path(sys.executable).with_name("headway"), "trials", "digits", "--workspace", project / "workspace")
    subprocess.run(command, cwd=project, env=os.environ | {"HEADWAY_PROJECT": str(project)}, check=True)
    (page,) = (project / "workspace").glob("ledger/*/trials.html")
    camera.both("search-report", page.as_uri(), 1500)


def take_site(camera: Camera, site: Path) -> None:
    build = (sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(site))
    subprocess.run(build, cwd=REPOSITORY, check=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
    for name in SITE:
        camera.both(f"site-{name.replace('/', '-')}", (site / f"{name}.html").as_uri(), 1000)


def wait_for_run(prefect: ServerProcess, deployment: str) -> str:
    """The flow run that the form started, once it has completed."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        for run in api(prefect, "flow_runs/filter", {"deployments": {"id": {"any_": [deployment]}}}):
            if run["state_type"] == "COMPLETED":
                return str(run["id"])
            if run["state_type"] in ("FAILED", "CRASHED", "CANCELLED"):
                raise EnvironmentProblem(f"the retrain ended as {run['state_name']}.", where=run["state"]["message"])
        time.sleep(1)
    raise EnvironmentProblem(f"the retrain was not done within {PATIENCE_S:.0f} s.")


def api(prefect: ServerProcess, path: str, body: dict[str, Any] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    known = {"Authorization": f"Basic {base64.b64encode(os.environ['PREFECT_API_AUTH_STRING'].encode()).decode()}"}
    asked = f"{prefect.url}/api/csrf-token?client={CLIENT}"
    with urllib.request.urlopen(urllib.request.Request(asked, headers=known), timeout=60) as answer:
        token = {"Prefect-Csrf-Client": CLIENT, "Prefect-Csrf-Token": json.load(answer)["token"]}
    headers = {"Content-Type": "application/json", **known, **token}
    request = urllib.request.Request(f"{prefect.url}/api/{path}", data, headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


if __name__ == "__main__":
    main()
