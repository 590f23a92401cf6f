import asyncio
import base64
import hashlib
import json
import re
import threading
import time
import urllib.request
from urllib.parse import urlsplit

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

PART = r'"[a-z0-9@-]+"(?:;key="sig1")?'
FORM = re.compile(r'sig1=(\((%s(?: %s)*)\)((?:;[a-z]+=(?:[0-9]{1,15}|"[!#-\[\]-~]{1,200}"))+))' % (PART, PART))
LARGEST = 8 << 20


def normalize_address(address: str) -> str:
    """Returns an address as Herald writes it in signatures: in lower case, no default port, no dot or slash at its end."""
    url = urlsplit(address)
    host, ports = (url.hostname or "").removesuffix("."), {"http": 80, "https": 443}
    if url.scheme not in ports or not host or not host.isascii() or url.query or url.fragment or "@" in url.netloc:
        raise ValueError(f"want an http or https URL with a host in ASCII and without query: {address}")
    host = f"[{host}]" if ":" in host else host
    port = "" if url.port in (None, ports[url.scheme]) else f":{url.port}"
    return f"{url.scheme}://{host}{port}{url.path.removesuffix('/')}"


class OnlyHerald:
    """ASGI middleware that serves one Herald alone. own: this agent's scheme and host, as registered."""

    def __init__(self, app, herald: str, own: str):
        self.app, self.herald, self.own = app, normalize_address(herald), normalize_address(own)
        self.keys: dict[str, Ed25519PublicKey] = {}
        self.fetched = self.tried = 0.0
        self.seen: dict[str, int] = {}  # nonces, until they expire
        self.lock = threading.Lock()

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        body, more = b"", True
        while more and len(body) <= LARGEST:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body, more = body + message.get("body", b""), message.get("more_body", False)
        status = 413 if len(body) > LARGEST else await asyncio.to_thread(self.check, scope, body)
        if status:
            await send({"type": "http.response.start", "status": status, "headers": [(b"retry-after", b"10")]})
            return await send({"type": "http.response.body", "body": b"only %s may call" % self.herald.encode()})
        given = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def again():
            return next(given, None) or await receive()

        await self.app(scope, again, send)

    def check(self, scope, body: bytes) -> int:
        """The HTTP status of the refusal; 0: it is Herald."""
        headers: dict[str, str] = {}
        for raw_name, raw_value in scope["headers"]:  # names are in lower case
            name, text = raw_name.decode("latin-1"), raw_value.decode("latin-1").strip()
            headers[name] = headers[name] + ", " + text if name in headers else text
        form = FORM.fullmatch(headers.get("signature-input", ""))
        if not form:
            return 401
        covered, parameters = form[2].split(" "), re.findall(r';([a-z]+)="?([^";]*)', form[3])
        said = dict(parameters)
        need = {'"@method"', '"@target-uri"', '"signature-agent";key="sig1"'}
        need |= {'"content-digest"'} if body else set()
        need |= {f'"{n}"' for n in headers if n in ("content-type", "content-digest") or n.startswith("mcp-")}
        if len(said) != len(parameters) or len(set(covered)) != len(covered) or not need <= set(covered):
            return 401
        if not all(said.get(n, "").isdigit() for n in ("created", "expires")):
            return 401
        now, created, expires = time.time(), int(said["created"]), int(said["expires"])
        if not (created <= now + 60 and created <= expires <= created + 600 and now < expires + 60):
            return 401
        nonce = said.get("nonce", "")
        if said.get("alg") != "ed25519" or said.get("tag") != "web-bot-auth" or len(nonce) < 16:
            return 401
        if headers.get("signature-agent") != f'sig1="{self.herald}"':
            return 401
        digest = "sha-256=:" + base64.b64encode(hashlib.sha256(body).digest()).decode() + ":"
        if (body or "content-digest" in headers) and headers.get("content-digest") != digest:
            return 401

        target = self.own + scope["raw_path"].decode("latin-1").partition("?")[0]
        if scope["query_string"]:
            target += "?" + scope["query_string"].decode("latin-1")
        values = {'"@method"': scope["method"], '"@target-uri"': target, '"signature-agent";key="sig1"': f'"{self.herald}"'}
        lines = [f"{name}: {values[name] if name in values else headers.get(name[1:-1], '')}" for name in covered]
        base = "\n".join([*lines, f'"@signature-params": {form[1]}'])
        signature = re.fullmatch(r"sig1=:([A-Za-z0-9+/=]{88}):", headers.get("signature", ""))
        with self.lock:
            key = self.find(said.get("keyid", ""))
            if key is None:
                return 503 if self.fetched < self.tried else 401
            try:
                key.verify(base64.b64decode(signature[1] if signature else ""), base.encode("latin-1"))
            except (InvalidSignature, ValueError):
                return 401
            while self.seen and (oldest := next(iter(self.seen))) and self.seen[oldest] < now:
                del self.seen[oldest]
            if nonce in self.seen:
                return 401
            self.seen[nonce] = expires + 60
        return 0

    def find(self, keyid: str):
        now = time.monotonic()
        if (keyid not in self.keys or now - self.fetched > 300) and (not self.tried or now - self.tried >= 10):
            self.tried = now
            try:
                url = self.herald + "/.well-known/http-message-signatures-directory"
                with urllib.request.urlopen(url, timeout=5) as answer:
                    found = json.loads(answer.read(64 << 10))["keys"]
                keys = {}
                for k in found:
                    if (k["kty"], k["crv"]) == ("OKP", "Ed25519"):
                        text = '{"crv":"Ed25519","kty":"OKP","x":"%s"}' % k["x"]
                        thumbprint = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
                        keys[thumbprint] = Ed25519PublicKey.from_public_bytes(base64.urlsafe_b64decode(k["x"] + "="))
                self.keys, self.fetched = keys, now
            except (OSError, ValueError, KeyError, TypeError):
                pass  # those that are known go on
        return self.keys.get(keyid)
