"""A small PostgreSQL client that shows each message of the server as one line of text."""
import base64, contextlib, hashlib, hmac, os, socket, ssl, struct

FIELDS = {"S": "severity", "C": "sqlstate", "M": "message", "D": "detail", "H": "hint"}


class Gone(Exception):
    """The other side closed the connection."""


class Client:
    """One connection. `lines` has the messages since it was last read, without ReadyForQuery."""

    def __init__(self, address, timeout=15):
        if isinstance(address, tuple):
            self.socket = socket.create_connection(address, timeout)
        else:
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.settimeout(timeout)
            self.socket.connect(str(address))
        self.parameters, self.lines, self.status, self.key = {}, [], None, None

    def start_tls(self, context=None):
        """Sends SSLRequest; returns the reply, `S` or `N`."""
        self.socket.sendall(struct.pack("!ii", 8, 80877103))
        reply = self.socket.recv(1).decode()
        if reply == "S":
            if context is None:
                context = ssl.create_default_context()
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            self.socket = context.wrap_socket(self.socket)
        return reply

    def log_in(self, user, database, password=None, protocol=196608, **options):
        """Sends the startup packet, authenticates, and returns the lines up to ReadyForQuery or the end."""
        body = b"".join(f"{name}\0{value}\0".encode()
                        for name, value in {"user": user, "database": database, **options}.items())
        self.socket.sendall(struct.pack("!ii", 9 + len(body), protocol) + body + b"\0")
        self.user, self.password = user, password or ""
        return self.read()

    def query(self, sql):
        """Sends a simple query and returns the lines of its reply."""
        self.send("Q", sql.encode() + b"\0")
        return self.read()

    def rows(self, sql):
        """Returns the rows of a simple query as dictionaries."""
        self.send("Q", sql.encode() + b"\0")
        self.columns, self.values = [], []
        self.read()
        return [dict(zip(self.columns, row)) for row in self.values]

    def extended(self, sql):
        """The messages of a driver without names: Parse, Bind, Describe, Execute, Sync."""
        parts = [("P", b"\0" + sql.encode() + b"\0\0\0"), ("B", b"\0\0\0\0\0\0\0\0"), ("D", b"P\0"),
                 ("E", b"\0\0\0\0\0"), ("S", b"")]
        self.socket.sendall(b"".join(frame(tag, body) for tag, body in parts))
        return self.read()

    def send(self, tag, body=b""):
        self.socket.sendall(frame(tag, body))

    def read(self):
        """Reads up to ReadyForQuery or the end of the connection."""
        with contextlib.suppress(Gone):
            while self.read_one() != "Z":
                pass
        lines, self.lines = self.lines, []
        return lines

    def read_until_closed(self):
        """Reads to the end of the connection; whatever is left in it counts."""
        with contextlib.suppress(Gone):
            while True:
                self.read_one()
        lines, self.lines = self.lines, []
        return lines

    def read_one(self):
        try:
            head = self.receive(5)
            tag, body = chr(head[0]), self.receive(struct.unpack("!i", head[1:])[0] - 4)
        except socket.timeout:
            self.lines.append("no reply in time")
            raise Gone from None
        except (OSError, Gone):
            self.lines.append("closed")
            raise Gone from None
        self.handle(tag, body)
        return tag

    def receive(self, count):
        data = b""
        while len(data) < count:
            some = self.socket.recv(count - len(data))
            if not some:
                raise Gone
            data += some
        return data

    def handle(self, tag, body):
        if tag == "R":
            self.authenticate(struct.unpack("!i", body[:4])[0], body[4:])
        elif tag == "S":
            name, value = body[:-1].decode().split("\0")
            self.parameters[name] = value
        elif tag == "K":
            self.key = body
        elif tag == "Z":
            self.status = body.decode()
            if self.status != "I":
                self.lines.append(f"status {self.status}")
        elif tag in "EN":
            fields = {part[:1].decode(): part[1:].decode() for part in body.split(b"\0") if part}
            texts = [fields[code] for code in "SCMDH" if code in fields]
            self.lines.append(("error: " if tag == "E" else "notice: ") + " | ".join(texts))
        elif tag == "T":
            self.columns, kinds, at = [], [], 2
            for _ in range(struct.unpack("!h", body[:2])[0]):
                end = body.index(0, at)
                self.columns.append(body[at:end].decode())
                kinds.append(struct.unpack("!i", body[end + 7:end + 11])[0])
                at = end + 19
            self.values = []
            self.lines.append("columns: " + ", ".join(f"{name} {TYPES.get(kind, kind)}"
                                                      for name, kind in zip(self.columns, kinds)))
        elif tag == "D":
            row, at = [], 2
            for _ in range(struct.unpack("!h", body[:2])[0]):
                size = struct.unpack("!i", body[at:at + 4])[0]
                row.append(None if size < 0 else body[at + 4:at + 4 + size].decode(errors="replace"))
                at += 4 + max(size, 0)
            getattr(self, "values", []).append(row)
            self.lines.append("row: " + " | ".join("null" if value is None else value for value in row))
        elif tag == "C":
            self.lines.append("tag: " + body[:-1].decode())
        else:
            self.lines.append({"1": "parsed", "2": "bound", "3": "close complete", "n": "no data",
                               "I": "empty query", "s": "suspended"}.get(tag, f"message {tag}"))

    def authenticate(self, kind, body):
        if kind == 3:
            self.send("p", self.password.encode() + b"\0")
        elif kind == 5:
            inner = hashlib.md5((self.password + self.user).encode()).hexdigest().encode()
            self.send("p", b"md5" + hashlib.md5(inner + body[:4]).hexdigest().encode() + b"\0")
        elif kind == 10:
            self.nonce = base64.b64encode(os.urandom(18)).decode()
            self.first = f"n=,r={self.nonce}"
            text = ("n,," + self.first).encode()
            self.send("p", b"SCRAM-SHA-256\0" + struct.pack("!i", len(text)) + text)
        elif kind == 11:
            parts = dict(part.split("=", 1) for part in body.decode().split(","))
            salted = hashlib.pbkdf2_hmac("sha256", self.password.encode(), base64.b64decode(parts["s"]),
                                         int(parts["i"]))
            key = hmac.digest(salted, b"Client Key", "sha256")
            last = f"c=biws,r={parts['r']}"
            signed = ",".join([self.first, body.decode(), last]).encode()
            signature = hmac.digest(hashlib.sha256(key).digest(), signed, "sha256")
            proof = base64.b64encode(bytes(a ^ b for a, b in zip(key, signature))).decode()
            self.send("p", f"{last},p={proof}".encode())

    def close(self):
        with contextlib.suppress(OSError):
            self.send("X")
        self.socket.close()


TYPES = {16: "bool", 17: "bytea", 20: "int8", 23: "int4", 25: "text", 1043: "varchar", 1700: "numeric"}


def frame(tag, body=b""):
    return tag.encode() + struct.pack("!i", len(body) + 4) + body


def scram_secret(password, salt=b"0123456789abcdef", rounds=4096):
    """The secret of pg_authid for a password."""
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, rounds)
    stored = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    server = hmac.digest(salted, b"Server Key", "sha256")
    text = [base64.b64encode(part).decode() for part in (salt, stored, server)]
    return f"SCRAM-SHA-256${rounds}:{text[0]}${text[1]}:{text[2]}"
