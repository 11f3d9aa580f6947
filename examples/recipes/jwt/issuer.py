"""Makes tokens with openssl.

issuer.py FOLDER keys              makes a key, FOLDER/key.pem, and its set, FOLDER/jwks.json
issuer.py FOLDER token NAME=VALUE  prints a token of this key with further or other claims; `exp` is in seconds from now
"""

import base64
import json
import pathlib
import subprocess
import sys
import time
import uuid

KEY = {"kty": "RSA", "kid": "recipe-1", "alg": "RS256", "use": "sig", "e": "AQAB"}


def text(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def openssl(*arguments, data=b""):
    return subprocess.run(["openssl", *arguments], input=data, capture_output=True, check=True).stdout


def make_keys(folder):
    openssl("genrsa", "-out", folder / "key.pem", "2048")
    modulus = openssl("rsa", "-in", folder / "key.pem", "-noout", "-modulus").decode().strip().partition("=")[2]
    (folder / "jwks.json").write_text(json.dumps({"keys": [{**KEY, "n": text(bytes.fromhex(modulus))}]}))


def make_token(folder, changes):
    now = int(time.time())
    claims = {"iss": "https://login.example", "aud": "shop", "sub": "alice", "iat": now, "jti": str(uuid.uuid4()), **changes}
    claims["exp"] = now + int(changes.get("exp", 300))
    head = {"alg": "RS256", "typ": "JWT", "kid": KEY["kid"]}
    signed = ".".join(text(json.dumps(part).encode()) for part in (head, claims))
    return f"{signed}.{text(openssl('dgst', '-sha256', '-sign', folder / 'key.pem', data=signed.encode()))}"


place, command, *claims = sys.argv[1:]
if command == "keys":
    make_keys(pathlib.Path(place))
else:
    print(make_token(pathlib.Path(place), dict(claim.split("=", 1) for claim in claims)))
