"""An object store in memory with the interface of S3, for a broker that is killed and started again with its records."""

import hashlib
import http.server
import threading
import urllib.parse
from xml.sax.saxutils import escape


class ObjectStore:
    """Answers GET, HEAD, PUT and DELETE of objects with their conditions, and lists them. One lock: each request is atomic."""

    def __init__(self):
        self.objects, self.lock = {}, threading.Lock()
        store = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def answer(self, status, body=b"", **headers):
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name.replace("_", "-"), value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            def handle_request(self):
                url = urllib.parse.urlsplit(self.path)
                query = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                with store.lock:
                    status, content, headers = store.request(
                        self.command, urllib.parse.unquote(url.path), query, self.headers, body)
                self.answer(status, content, **headers)

            do_GET = do_HEAD = do_PUT = do_DELETE = do_POST = handle_request

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def request(self, method, path, query, headers, body):
        _, bucket, *rest = path.split("/", 2)
        name = rest[0] if rest else ""
        if method == "GET" and not name:
            return 200, self.list(bucket, query).encode(), {"Content_Type": "application/xml"}
        found = self.objects.get(name)
        tag = found and found[0]
        wanted, refused = headers.get("If-Match"), headers.get("If-None-Match")
        if (wanted and wanted != tag) or (refused == "*" and found):
            return 412, b"", {}
        if method == "PUT":
            tag = f'"{hashlib.md5(body + str(len(self.objects)).encode()).hexdigest()}"'
            self.objects[name] = (tag, body)
            return 200, b"", {"ETag": tag}
        if method == "DELETE":
            self.objects.pop(name, None)
            return 204, b"", {}
        if not found:
            return 404, b"<Error><Code>NoSuchKey</Code></Error>", {}
        if refused == tag:
            return 304, b"", {"ETag": tag}
        more = {"ETag": tag, "Last_Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}
        content, span = found[1], headers.get("Range")
        if not span:
            return 200, content, more
        first, last = span.removeprefix("bytes=").split("-")
        first, last = int(first), min(int(last or len(content) - 1), len(content) - 1)
        return 206, content[first:last + 1], {**more, "Content_Range": f"bytes {first}-{last}/{len(content)}"}

    def list(self, bucket, query):
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        after, entries, folders = query.get("start-after", ""), [], set()
        for name in sorted(self.objects):
            if not name.startswith(prefix) or name <= after:
                continue
            inner = name[len(prefix):]
            if delimiter and delimiter in inner:
                folders.add(prefix + inner.split(delimiter)[0] + delimiter)
                continue
            tag, content = self.objects[name]
            entries.append(f"<Contents><Key>{escape(name)}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
                           f"<ETag>{escape(tag)}</ETag><Size>{len(content)}</Size></Contents>")
        entries += [f"<CommonPrefixes><Prefix>{escape(one)}</Prefix></CommonPrefixes>" for one in sorted(folders)]
        return (f'<?xml version="1.0"?><ListBucketResult><Name>{bucket}</Name><Prefix>{escape(prefix)}</Prefix>'
                f"<IsTruncated>false</IsTruncated>{''.join(entries)}</ListBucketResult>")
