"""`headway deploy PROFILE --render`: its deployments as a file for `prefect deploy`, which makes the same ones of it.

That format holds deployments and their schedules. Work pools, limits, variables and automations it cannot say.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Any

import yaml

from headway.data_contracts.store.documents import Json
from headway.data_contracts.store.errors import ConfigError
from headway.flows.deploy.resources import Resource

WHERE_CALLED = "{{ $PWD }}"
"""`prefect deploy` puts the folder in its place in which it is called."""
COMMENT = """\
# Rendered by `headway deploy PROFILE --render > deployments/prefect.yaml`; edit the pipeline files or profiles.yaml,
# and render it anew. From the project's folder, which runs then find by HEADWAY_PROJECT:
#
#   prefect work-pool create POOL --type process
#   prefect --no-prompt deploy --all --prefect-file deployments/prefect.yaml
#   prefect worker start --pool POOL
#
# `headway deploy PROFILE` makes the same deployments, whose forms list the pipelines. It also makes the pool, limits,
# variables and automations, which `prefect deploy` does not know, and removes what is gone from the files. Either may
# follow the other.
"""


def render(profile_name: str, resources: Sequence[Resource]) -> str:
    """The text of a `prefect.yaml` with the deployments among `resources`.

    Raises:
        ConfigError: a text of theirs would not stay what it is.
    """
    deployments = [_deployment(each) for each in resources if each.kind == "deployment"]
    _require_no_templates(deployments)
    # People copy the commands that name it.
    pool = shlex.quote(next(each.name for each in resources if each.kind == "work pool"))
    # Nothing to fetch: the workers' environment has Headway installed.
    file = {"name": "headway", "build": [], "push": [], "pull": [], "deployments": deployments}
    comment = COMMENT.replace("PROFILE", profile_name).replace("POOL", pool)
    return comment + yaml.dump(file, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


def _require_no_templates(deployments: Sequence[Json]) -> None:
    """`prefect deploy` would put variables of its own environment, secrets among them, onto the server's pages."""
    for text in _texts(deployments):
        if "{{" in text and text != WHERE_CALLED:
            raise ConfigError(
                f"`prefect deploy` puts something else in the place of {text!r}.",
                where="--render",
                advice="Write it without `{{`, or deploy it with `headway deploy PROFILE`, to which it is text.",
            )


def _texts(value: Json) -> Iterator[str]:
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list | tuple):
        for each in value:
            yield from _texts(each)
    elif isinstance(value, str):
        yield value


def _deployment(resource: Resource) -> dict[str, Json]:
    fields = resource.fields
    limit = {"limit": fields["concurrency_limit"], **fields["concurrency_options"]}
    return {
        "name": resource.name.partition("/")[2],
        **{field: fields[field] for field in ("description", "version", "tags", "entrypoint", "parameters")},
        "enforce_parameter_schema": fields["enforce_parameter_schema"],
        "work_pool": {"name": fields["work_pool_name"], "job_variables": fields["job_variables"]},
        "concurrency_limit": limit,
        "schedules": [_schedule(each) for each in fields["schedules"]],
    }


def _schedule(schedule: dict[str, Json]) -> dict[str, Json]:
    rest = {key: value for key, value in schedule.items() if key not in ("slug", "schedule")}
    return {"slug": schedule["slug"], **schedule["schedule"], **rest}


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True  # each deployment is read by itself


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)
