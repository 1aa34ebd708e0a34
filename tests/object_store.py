"""An object store that speaks as much of S3's protocol as reading a folder of this machine takes."""

from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit


class ObjectStore(BaseHTTPRequestHandler):
    """Serves the files below `root` as the objects of any bucket."""

    protocol_version = "HTTP/1.1"
    root: Path

    def do_HEAD(self):
        self._answer(*self._found())

    def do_GET(self):
        self._answer(*self._found(), body=True)

    def log_message(self, *arguments):
        pass

    def _found(self):
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        if "list-type" in query:
            return 200, self._listing(query.get("prefix", ""), query.get("delimiter"))
        key = unquote(url.path).strip("/").partition("/")[2]
        if not (self.root / key).is_file():
            return 404, b""
        content = (self.root / key).read_bytes()
        if wanted := self.headers.get("Range"):
            first, last = wanted.removeprefix("bytes=").split("-")
            return 206, content[int(first) : int(last) + 1 if last else None]
        return 200, content

    def _listing(self, prefix, delimiter):
        files = sorted(file for file in self.root.rglob("*") if file.is_file())
        sizes = {file.relative_to(self.root).as_posix(): file.stat().st_size for file in files}
        inside = [key for key in sizes if key.startswith(prefix)]
        deeper = {k: k[len(prefix) :].split("/")[0] for k in inside if "/" in k[len(prefix) :]}
        deeper = deeper if delimiter else {}
        found = [
            f"<Contents><Key>{key}</Key><Size>{sizes[key]}</Size></Contents>"
            for key in inside
            if key not in deeper
        ] + [
            f"<CommonPrefixes><Prefix>{prefix}{name}/</Prefix></CommonPrefixes>"
            for name in sorted(set(deeper.values()))
        ]
        found += [f"<KeyCount>{len(found)}</KeyCount>", "<IsTruncated>false</IsTruncated>"]
        return f"<ListBucketResult>{''.join(found)}</ListBucketResult>".encode()

    def _answer(self, status, content, body=False):
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if body:
            self.wfile.write(content)
