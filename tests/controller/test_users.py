# SPDX-License-Identifier: Apache-2.0
"""The users file: who a token belongs to, and what is refused by name."""

from __future__ import annotations

import json
import math
import os
import time
from pathlib import Path

import jwt
import pytest
import typer
from typer.testing import CliRunner

from p4reduce_controller.base.schema import SettingsError
from p4reduce_controller.commands import token_cli
from p4reduce_controller.tenants.access import Caller, Role, Unauthenticated
from p4reduce_controller.tenants.quotas import Quota
from p4reduce_controller.tenants.users import UsersFile, digest, read_users
from tests.support.controller.users import ISSUER, JWT, USERS, Provider, file


def test_who_a_token_belongs_to(tmp_path: Path) -> None:
    users = UsersFile(file(tmp_path), operators_token="the one")
    assert users.caller("a") == Caller("alice", Role.USER, "vision")
    assert users.caller("b") == Caller("bob", Role.USER, "bob")
    assert users.caller("p") == Caller("page", Role.VIEWER, "")
    assert users.caller("the one").role is users.caller("o").role is Role.OPERATOR
    for strange in ("", "A", digest("a"), "x.y.z", "\udcff"):
        with pytest.raises(Unauthenticated):
            users.caller(strange)
    policy = users.book.policy
    assert policy.quota("bob") == Quota(jobs=2)
    assert policy.quota("vision") == Quota(slots=8, jobs=2, slot_hours=0.5, priority=3)
    [reserved] = policy.reservations
    assert (reserved.slots, reserved.start, reserved.end) == (4, -math.inf, 4102444800.0)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[users", "Expected ']'"),
        ("", "neither [users.NAME] nor [jwt]"),
        ("[users.a]", "users.a: token_sha256 is not 64 hexadecimal digits; `p4reduce token a`"),
        (f'[users.a]\ntoken_sha256 = "{digest("a")}"\nrole = "root"', "must be one of viewer, user, operator"),
        (f'[users.a]\ntoken_sha256 = "{digest("a")}"\nrolle = "user"', "unknown rolle"),
        (
            f'[users.a]\ntoken_sha256 = "{digest("a")}"\n[users.b]\ntoken_sha256 = "{digest("a")}"',
            "the same token as a",
        ),
        (f"{USERS}\n[tenants.x]\nslots = 0", "tenants.x: slots = 0: must be from 1 to"),
        (f"{USERS}\n[tenants.x]\nslots = true", "slots = True"),
        (f'{USERS}\n[[reservations]]\ntenant = "x"', "reservations[1]: tenant, slots and until are needed"),
        (f'{USERS}\n[[reservations]]\ntenant = "x"\nslots = 1\nuntil = 2030-01-01', "a time with its zone"),
        (f'{USERS}\n[jwt]\nissuer = "i"\naudience = "a"', "either jwks"),
        (
            f'{USERS}\n[jwt]\nissuer = "i"\naudience = "a"\nkey = "k"\nalgorithms = ["HS256"]',
            "must be a list with some of RS256",
        ),
        (f'{USERS}\n[jwt]\nissuer = "i"\naudience = "a"\nkey = "missing.pem"', "No such file"),
        (
            f'{USERS}\n[jwt]\nissuer = "i"\naudience = "a"\nkey = "k"\nalgorithms = [["a"]]',
            "must be a list with some of RS256",
        ),
        (f'{USERS}\n[jwt]\nissuer = "i"\naudience = "a"\njwks = "list.json"', "must be a JSON Web Key Set"),
        (f'{USERS}\n[jwt]\nissuer = "i"\naudience = "a"\njwks = "deep.json"', "recursion"),
        (f"{USERS}\n[tenants.x]\nslots = {'9' * 5000}", "4300 digits"),
        (f"a = {'[' * 20000}", "recursion"),
    ],
)
def test_what_is_not_accepted_is_named(tmp_path: Path, text: str, error: str) -> None:
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "deep.json").write_text("[" * 100_000)
    with pytest.raises(SettingsError) as refused:
        read_users(file(tmp_path, text))
    assert error in str(refused.value)
    assert "users.toml: " in str(refused.value)


def test_a_file_that_changes_is_read_again_unless_it_has_an_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = file(tmp_path)
    users = UsersFile(path)
    assert not users.refresh()
    path.write_text(USERS.replace(digest("a"), digest("changed")))
    assert users.refresh()
    with pytest.raises(Unauthenticated):
        users.caller("a")
    path.write_text("nonsense")
    assert not users.refresh()
    assert "the version read before stays in force" in caplog.text
    path.unlink()
    assert not users.refresh()
    assert users.caller("changed").name == "alice"


def test_tokens_that_are_signed(tmp_path: Path) -> None:
    provider = Provider(tmp_path)
    users = UsersFile(file(tmp_path, f'{JWT}jwks = "jwks.json"'))
    assert users.caller(provider.token()) == Caller("carol", Role.USER, "carol")
    more = {"p4reduce_role": "operator", "p4reduce_tenant": "vision"}
    assert users.caller(provider.token(**more)) == Caller("carol", Role.OPERATOR, "vision")
    assert users.caller(provider.token(p4reduce_role="viewer")) == Caller("carol", Role.VIEWER, "")
    assert users.caller(provider.token(exp=time.time() - 1)) == Caller("carol", Role.USER, "carol", expired=True)


def test_tokens_that_are_not_accepted(tmp_path: Path) -> None:
    stranger = Provider(tmp_path)
    provider = Provider(tmp_path)
    users = UsersFile(file(tmp_path, f'{JWT}jwks = "jwks.json"'))
    for token in (
        stranger.token(),
        provider.token(iss="https://other.example"),
        provider.token(aud="other"),
        provider.token(aud="other", exp=time.time() - 1),
        provider.token(exp=None),
        provider.token(nbf=time.time() + 30),
        provider.token(sub=None),
        provider.token(sub="\n"),
        provider.token(p4reduce_role="root"),
        provider.token(p4reduce_tenant=""),
        provider.token(p4reduce_tenant=["a"]),
        provider.token(algorithm="HS256", key="x" * 32),
        jwt.encode({"iss": ISSUER, "aud": "p4reduce", "exp": 2**33, "sub": "carol"}, None, algorithm="none"),
        provider.token()[:-4] + "AAAA",
        "..",
        "a.b.c",
    ):
        with pytest.raises(Unauthenticated) as refused:
            users.caller(token)
        assert len(token) < 10 or not any(part in str(refused.value) for part in token.split(".") if part)


def test_a_providers_keys_that_are_rotated_are_read_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    old = Provider(tmp_path, "1")
    users = UsersFile(file(tmp_path, f'{JWT}jwks = "jwks.json"'))
    assert not users.refresh()
    new = Provider(tmp_path, "2")
    assert users.refresh()
    assert users.caller(new.token()).name == "carol"
    with pytest.raises(Unauthenticated, match="a key that is not known"):
        users.caller(old.token())
    (tmp_path / "jwks.json").write_text("{")
    assert not users.refresh()
    assert "jwks.json: " in caplog.text
    assert users.caller(new.token()).name == "carol"

    # Files that a refused users file names are watched all the same.
    file(tmp_path, f'{JWT}key = "key.pem"')
    assert not users.refresh()
    (tmp_path / "key.pem").write_bytes(old.pem)
    assert users.refresh()
    assert users.caller(old.token()).name == "carol"
    assert not users.refresh()


def test_a_key_alone(tmp_path: Path) -> None:
    provider = Provider(tmp_path)
    (tmp_path / "key.pem").write_bytes(provider.pem)
    users = UsersFile(file(tmp_path, f'{JWT}key = "key.pem"'))
    assert users.caller(provider.token()).name == "carol"


def test_the_command_makes_what_the_file_takes(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(token_cli.token)
    result = CliRunner().invoke(app, ["dora", "--role", "operator", "--tenant", 'a "b"'])
    token, _, entry = result.stdout.partition("\n")
    users = UsersFile(file(tmp_path, entry))
    assert users.caller(token) == Caller("dora", Role.OPERATOR, 'a "b"')
    assert token not in entry
    made = json.loads(CliRunner().invoke(app, ["dora", "--json"]).stdout)
    assert made["users"]["dora"] == {"token_sha256": digest(made["token"]), "role": "user"}
    assert made["token"] != token
    assert CliRunner().invoke(app, ["dora", "--role", "root"]).exit_code == 1


def test_a_change_within_the_same_size_is_seen(tmp_path: Path) -> None:
    path = file(tmp_path)
    users = UsersFile(path)
    other = tmp_path / "new"
    other.write_text(USERS)
    os.utime(other, ns=(path.stat().st_mtime_ns, path.stat().st_mtime_ns))
    other.replace(path)
    assert users.refresh()
