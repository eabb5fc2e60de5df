# SPDX-License-Identifier: Apache-2.0
"""Users of a controller: a file of users, and an identity provider that signs tokens."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

from p4reduce_controller.tenants.users import digest


def user(name: str, token: str, **settings: str) -> str:
    """Return the table of a user in a file of users. settings: its other keys, such as role and tenant."""
    keys = {"token_sha256": digest(token), **settings}
    return f"[users.{name}]\n" + "".join(f'{key} = "{value}"\n' for key, value in keys.items())


USERS = f"""
[quotas]
jobs = 2

[tenants.vision]
slots = 8
slot_hours = 0.5
priority = 3
{user("alice", "a", tenant="vision")}
{user("bob", "b")}
{user("olga", "o", role="operator")}
{user("page", "p", role="viewer")}

[[reservations]]
tenant = "vision"
slots = 4
until = 2100-01-01T00:00:00Z
"""


ISSUER = "https://login.example"
JWT = f'\n[jwt]\nissuer = "{ISSUER}"\naudience = "p4reduce"\nleeway_s = 0\nalgorithms = ["ES256"]\n'


def file(folder: Path, text: str = USERS) -> Path:
    path = folder / "users.toml"
    path.write_text(text)
    return path


class Provider:
    """An identity provider that signs JSON Web Tokens with any claims. It writes its keys to jwks.json."""

    def __init__(self, folder: Path, key_id: str = "1") -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.key_id = key_id
        public: dict[str, Any] = ECAlgorithm.to_jwk(self.key.public_key(), as_dict=True)
        (folder / "jwks.json").write_text(json.dumps({"keys": [{**public, "kid": key_id, "alg": "ES256"}]}))
        self.pem = self.key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )

    def token(self, *, algorithm: str = "ES256", key: Any = None, **claims: Any) -> str:
        said = {"iss": ISSUER, "aud": "p4reduce", "exp": time.time() + 60, "sub": "carol", **claims}
        return jwt.encode(
            {name: value for name, value in said.items() if value is not None},
            key or self.key,
            algorithm=algorithm,
            headers={"kid": self.key_id},
        )
