"""On a machine of the lab: run each script that arrives on the port, stream its output, end with its exit code."""

import socket
import subprocess
import tempfile
import threading


def serve(connection):
    script = b""
    while chunk := connection.recv(65536):
        script += chunk
    # In a file: an argument has a limit that a large workflow in a script exceeds.
    with tempfile.NamedTemporaryFile() as file:
        file.write(script)
        file.flush()
        child = subprocess.Popen(["/bin/bash", file.name], stdin=subprocess.DEVNULL,
                                 stdout=connection.fileno(), stderr=connection.fileno())
        code = child.wait()
    try:
        connection.sendall(b"\0%d" % code)
    except OSError:
        pass  # The caller is gone.
    connection.close()


listener = socket.create_server(("", 7070), backlog=64)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
