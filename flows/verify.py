"""`headway verify`: the chain of proof, link by link, on a terminal or as JSON."""

from __future__ import annotations

from collections.abc import Iterator

from data_contracts.digests import sha256_file
from data_contracts.documents import Link, Snapshot
from data_contracts.errors import IntegrityError
from data_contracts.publication import Workspace
from flows.output import print_json, print_line
from tasks.prove import OUTSIDE, UNSIGNED, Proof, prove, source_proof
from tasks.snapshot import known_place

MARKS = {"proved": "proved", "gone": "gone  ", "broken": "BROKEN"}


def verify_model(model_uri: str, workspace_uri: str, *, as_json: bool) -> int:
    """Print every link; 0 when the chain holds, the exit code of an integrity error when one is broken."""
    workspace = Workspace.existing(workspace_uri)
    found = []
    for proof in proofs(workspace, model_uri):
        found.append(proof)
        if not as_json:
            print_line(f"{MARKS[proof.standing]}  {proof.what:<34} {proof.detail}")
    broken = [proof for proof in found if proof.standing == "broken"]
    gone = any(proof.standing == "gone" for proof in found)
    verdict = "broken" if broken else "source gone, shards prove it" if gone else "proved"
    if as_json:
        links = [{"what": p.what, "standing": p.standing, "detail": p.detail} for p in found]
        print_json({"model": model_uri, "verdict": verdict, "links": links, "outside": OUTSIDE, "unsigned": UNSIGNED})
    else:
        print_line(f"\nNot proved without signatures: {'; '.join(UNSIGNED)}.")
        print_line(f"Outside the proof: {'; '.join(OUTSIDE)}.")
        print_line(f"{model_uri}: {verdict}" + (f" at {broken[0].what}: {broken[0].detail}" if broken else ""))
    return IntegrityError.exit_code if broken else 0


def proofs(workspace: Workspace, model_uri: str, *, aliases: bool = True) -> Iterator[Proof]:
    """Every link of a model's proof, its source's files where they were read.

    Args:
        aliases: do MLflow's aliases have to say what the refs say?

    Raises:
        ConfigError: no such model.
    """

    def read_source(link: Link) -> Iterator[Proof]:
        base = known_place(workspace, link)
        snapshot = workspace.load(link, Snapshot)
        if base is None:
            yield Proof(what="source", standing="gone", detail="nobody recorded where it lies; the shards prove it")
        else:
            yield from source_proof(snapshot, base, lambda path: sha256_file(base / path))

    return prove(workspace, model_uri, read_source, aliases=aliases)
