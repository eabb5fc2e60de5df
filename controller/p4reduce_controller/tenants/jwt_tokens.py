# SPDX-License-Identifier: Apache-2.0
"""Tokens that an identity provider signs (JSON Web Tokens, RFC 7519), checked by PyJWT."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jwt

from p4reduce_controller.tenants.access import LONGEST_NAME, Caller, Role, Unauthenticated

# Algorithms with public keys only, so that a verifier of tokens cannot make any.
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
_KEYS = ("issuer", "audience", "jwks", "key", "algorithms", "user_claim", "role_claim", "tenant_claim", "leeway_s")


class JwtError(ValueError):
    """An error: the table [jwt] is not accepted. The message says what would be."""


@dataclass(frozen=True)
class JwtTokens:
    """The verifier of tokens. `keys`: by key id; "" is for tokens that name none."""

    issuer: str
    audience: str
    keys: Mapping[str, Any]
    algorithms: tuple[str, ...]
    user_claim: str = "sub"
    role_claim: str = "p4reduce_role"
    tenant_claim: str = "p4reduce_tenant"
    leeway_s: float = 30.0

    def caller(self, token: str) -> Caller:
        """Return the caller that the token names. Raise Unauthenticated if it is not valid."""
        try:
            key = self._key(jwt.get_unverified_header(token).get("kid", ""))
            try:
                return self._caller(self._claims(token, key))
            except jwt.ExpiredSignatureError:
                return self._caller(self._claims(token, key, verify_exp=False), expired=True)
        except (jwt.PyJWTError, TypeError, ValueError) as error:  # TypeError and ValueError: the key is of another kind
            raise Unauthenticated(f"the token is not accepted: {error}") from None

    def _key(self, key_id: object) -> Any:
        if isinstance(key_id, str) and key_id in self.keys:
            return self.keys[key_id]
        if not key_id and len(self.keys) == 1:
            return next(iter(self.keys.values()))
        if "" in self.keys:
            return self.keys[""]
        raise Unauthenticated("the token is signed with a key that is not known here")

    def _claims(self, token: str, key: Any, *, verify_exp: bool = True) -> dict[str, Any]:
        claims: dict[str, Any] = jwt.decode(
            token,
            key,
            algorithms=list(self.algorithms),
            audience=self.audience,
            issuer=self.issuer,
            leeway=self.leeway_s,
            options={"require": ["exp", "iss", "aud"], "verify_exp": verify_exp},
        )
        return claims

    def _caller(self, claims: Mapping[str, Any], *, expired: bool = False) -> Caller:
        name = claims.get(self.user_claim)
        if not _is_name(name):
            raise Unauthenticated(f"the token's {self.user_claim} is missing or not a valid name")
        try:
            role = Role.named(claims.get(self.role_claim, "user"))
        except ValueError as error:
            raise Unauthenticated(f"the token's {self.role_claim}: {error}") from None
        tenant = claims.get(self.tenant_claim, "" if role is Role.VIEWER else name)
        if not (_is_name(tenant) or (tenant == "" and role is Role.VIEWER)):
            raise Unauthenticated(f"the token's {self.tenant_claim} is not a valid name")
        return Caller(str(name), role, str(tenant), expired)


def jwt_tokens(table: Mapping[str, Any], folder: Path, read: Callable[[Path], bytes]) -> JwtTokens:
    """Return the verifier that the table [jwt] describes. Raises JwtError.

    Its file is relative to `folder`, and read by `read`.
    """
    if strange := sorted(table.keys() - set(_KEYS)):
        raise JwtError(f"unknown {', '.join(strange)}; known are {', '.join(_KEYS)}")
    values = {key: table.get(key, "") for key in ("issuer", "audience", "jwks", "key")}
    for key, value in values.items():
        if not isinstance(value, str) or (key in ("issuer", "audience") and not value):
            raise JwtError(f"{key} = {value!r}: must be a non-empty text")
    if bool(values["jwks"]) == bool(values["key"]):
        raise JwtError(
            "must have either jwks (a file with a JSON Web Key Set) or key (a file with a public key in PEM)"
        )
    algorithms = table.get("algorithms", ["RS256", "ES256", "EdDSA"])
    if not isinstance(algorithms, list) or not algorithms or not all(one in ALGORITHMS for one in algorithms):
        raise JwtError(f"algorithms = {algorithms!r}: must be a list with some of {', '.join(ALGORITHMS)}")
    claims = {key: table[key] for key in ("user_claim", "role_claim", "tenant_claim") if key in table}
    if not all(map(_is_name, claims.values())):
        raise JwtError("user_claim, role_claim and tenant_claim: must be names of claims")
    leeway = table.get("leeway_s", 30.0)
    if type(leeway) not in (int, float) or not 0 <= leeway <= 300:
        raise JwtError(f"leeway_s = {leeway!r}: must be from 0 to 300 seconds")
    file = folder / (values["jwks"] or values["key"])
    try:
        text = read(file).decode()
        keys = _of_jwks(text) if values["jwks"] else {"": text}
        if values["key"]:
            jwt.get_algorithm_by_name(algorithms[0]).prepare_key(text)
    except OSError as error:
        raise JwtError(f"{file}: {error.strerror}") from None
    except (jwt.PyJWTError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise JwtError(f"{file}: {error}") from None
    return JwtTokens(values["issuer"], values["audience"], keys, tuple(algorithms), leeway_s=float(leeway), **claims)


def _of_jwks(text: str) -> dict[str, Any]:
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError("must be a JSON Web Key Set: an object with keys")
    keys = jwt.PyJWKSet.from_dict(found).keys
    if private := [key.key_id for key in keys if key.key_type == "oct"]:
        raise ValueError(f"the key {private[0]!r} is a shared secret: must be a public key")
    return {key.key_id or "": key.key for key in keys}


def _is_name(value: object) -> bool:
    return isinstance(value, str) and 1 <= len(value) <= LONGEST_NAME and value.isprintable()
