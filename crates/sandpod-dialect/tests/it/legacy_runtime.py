"""A stand-in for agent-sandbox's first runtime, written from what is known of its API: no shell, text output, a time limit
that loses the output, one directory for files."""

import json
import os
import shlex
import subprocess
import sys
import urllib.parse
from email.parser import BytesParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

BASE = os.path.realpath(os.environ.get("SANDBOX_BASE_DIR", "/app"))
LIMIT = float(os.environ.get("SANDBOX_EXEC_TIMEOUT_SECONDS", "300"))


def inside(path):
    real = os.path.realpath(os.path.join(BASE, path.lstrip("/")))
    if real != BASE and not real.startswith(BASE + "/"):
        raise PermissionError
    return real


def execute(command):
    try:
        process = subprocess.Popen(
            shlex.split(command),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            cwd=BASE,
            start_new_session=True,
        )
        try:
            out, err = process.communicate(timeout=LIMIT)
        except BaseException:
            os.killpg(process.pid, 9)
            raise
        return {"stdout": out, "stderr": err, "exit_code": process.returncode}
    except Exception as error:
        return {"stdout": "", "stderr": f"Failed to execute command: {error}", "exit_code": 1}


class Runtime(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def setup(self):
        super().setup()
        self.connection.setsockopt(6, 1, 1)  # TCP_NODELAY

    def answer(self, status, content):
        if not isinstance(content, bytes):
            content = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def do_GET(self):
        path = urllib.parse.unquote(self.path)
        try:
            if path == "/":
                self.answer(200, {"status": "ok", "message": "Sandbox Runtime is active."})
            elif path.startswith("/download/"):
                real = inside(urllib.parse.unquote(path[len("/download/") :]))
                if not os.path.isfile(real):
                    return self.answer(404, {"message": "File not found"})
                with open(real, "rb") as file:
                    self.answer(200, file.read())
            elif path.startswith("/exists/"):
                self.answer(200, {"path": path, "exists": os.path.exists(inside(path[len("/exists/") :]))})
            else:
                self.answer(404, {"detail": "Not Found"})
        except PermissionError:
            self.answer(403, {"message": "Access denied"})

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/execute":
            return self.answer(200, execute(json.loads(body)["command"]))
        if self.path != "/upload":
            return self.answer(404, {"detail": "Not Found"})
        form = BytesParser().parsebytes(b"Content-Type: " + self.headers["Content-Type"].encode() + b"\r\n\r\n" + body)
        for part in form.get_payload():
            if part.get_param("name", header="content-disposition") == "file":
                try:
                    real = inside(part.get_filename())
                    os.makedirs(os.path.dirname(real), exist_ok=True)
                    with open(real, "wb") as file:
                        file.write(part.get_payload(decode=True))
                except PermissionError:
                    return self.answer(403, {"message": "Access denied"})
                return self.answer(200, {"message": f"File '{part.get_filename()}' uploaded successfully."})
        return self.answer(422, {"detail": "no file"})

    def log_message(self, *words):
        pass


class Server(ThreadingHTTPServer):
    request_queue_size = 64


server = Server(("0.0.0.0", int(os.environ.get("SANDBOX_PORT", "8888"))), Runtime)
print(server.server_address[1], flush=True)
try:
    server.serve_forever()
except KeyboardInterrupt:
    sys.exit(0)
