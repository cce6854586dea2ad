#!/usr/bin/env python3
"""Records what the real command lines of providers print, against the fake API on loopback.

    record.py TOOLS OUT [PROVIDER[/CASE]]...

TOOLS has a directory for each provider with its npm package in it (see `install`). For each case
OUT/<provider>/<case>.jsonl gets standard output, and OUT/<provider>/<case>.json how it ended:
exit code or signal, the last lines of standard error, and the time. What is to come of it
(`expect`) is for a person to write there; it is kept when a case is recorded again.
"""
import json, os, re, shutil, signal, subprocess, sys, tempfile, threading, time, uuid

HERE = os.path.dirname(os.path.abspath(__file__))
CLAUDE = ["-p", "--output-format", "stream-json", "--verbose", "--model", "sonnet",
          "--strict-mcp-config", "--disable-slash-commands"]
BYPASS = ["--permission-mode", "bypassPermissions"]
CODEX = ["--json", "--skip-git-repo-check", "-m", "gpt-5.5-codex", "-c",
         'sandbox_mode="danger-full-access"', "-c", "analytics.enabled=false", "--disable",
         "plugins", "--disable", "unbounded_connection_retries", "--ignore-user-config",
         "-c", 'model_provider="fake"', "-c"]
GEMINI = ["-o", "stream-json", "-m", "gemini-3.8-flash", "--approval-mode", "yolo"]
OPENCODE = ["run", "--format", "json", "-m", "fake/fake-model", "--auto"]


def claude(scenario, args=BYPASS, **more):
    return dict(provider="claude", scenario=scenario, args=CLAUDE + list(args), **more)


def codex(scenario, resume=None, **more):
    return dict(provider="codex", scenario=scenario, args=["exec"], resume=resume, **more)


def gemini(scenario, args=GEMINI, **more):
    return dict(provider="gemini", scenario=scenario, args=list(args), **more)


def opencode(scenario, **more):
    return dict(provider="opencode", scenario=scenario, args=OPENCODE, **more)


SCHEMA = '{"type":"object","properties":{"answer":{"type":"string"}},"required":["answer"]}'
CASES = {
    "claude": {
        "plain": claude("plain"),
        "json-format": claude("plain", args=BYPASS, swap=("stream-json", "json")),
        "write-file": claude("write_file;path=note.txt"),
        "denied": claude("write_file;path=note.txt", args=["--permission-mode", "default"]),
        "tool-error": claude("bash;cmd=exit%207"),
        "status-401": claude("err401"),
        "status-403": claude("err403"),
        "status-429": claude("rate_limit"),
        "status-429-soon": claude("rate_limit;retry_after=1"),
        "status-500": claude("err500"),
        "status-529": claude("overloaded"),
        "status-400": claude("err400"),
        "usage-limit": claude("usage_limit;reset=7200", token=True),
        "credit": claude("credit"),
        "too-long": claude("too_long"),
        "refused-connection": claude("plain", refused=True),
        "dropped": claude("drop"),
        "refusal": claude("refusal"),
        "max-tokens": claude("max_tokens"),
        "empty": claude("empty"),
        "max-turns": claude("loop;cmd=true", args=BYPASS + ["--max-turns", "2"]),
        "max-budget": claude("loop;cmd=true;in=900000;out=9000",
                             args=BYPASS + ["--max-budget-usd", "0.5"]),
        "structured": claude('structured;json={"answer":"42"}',
                             args=BYPASS + ["--json-schema", SCHEMA]),
        "structured-unmet": claude("plain", args=BYPASS + ["--json-schema", SCHEMA]),
        "sigterm": claude("hang", signal=signal.SIGTERM),
        "sigint": claude("hang", signal=signal.SIGINT),
        "sigkill": claude("hang", signal=signal.SIGKILL),
        "not-logged-in": claude("plain", no_key=True),
        "bad-flag": claude("plain", args=["--no-such-flag"]),
        "unknown-session": claude("plain", args=["--resume", str(uuid.UUID(int=7))]),
        "resumed": claude("usage;in=1000;out=50", args=BYPASS, again=True),
    },
    "codex": {
        "plain": codex("plain"),
        "write-file": codex("write_file;path=note.txt"),
        "tool-error": codex("bash;cmd=exit%207"),
        "status-401": codex("err401"),
        "status-403": codex("err403"),
        "status-429": codex("rate_limit"),
        "status-500": codex("err500"),
        "status-529": codex("overloaded"),
        "status-400": codex("err400"),
        "usage-limit": codex("usage_limit;reset=172800"),
        "usage-limit-today": codex("usage_limit;reset=60"),
        "quota": codex("credit"),
        "dropped": codex("drop"),
        "max-tokens": codex("max_tokens"),
        "refused-connection": codex("plain", refused=True),
        "sigterm": codex("hang", signal=signal.SIGTERM),
        "sigkill": codex("hang", signal=signal.SIGKILL),
        "bad-flag": codex("plain", extra=["--no-such-flag"]),
        "bad-feature": codex("plain", extra=["--disable", "no_such_feature"]),
        "empty": codex("empty"),
        "sleeps-at-a-limit": codex("rate_limit;retry_after=3600", silent=60),
        "sleeps": codex("hang", silent=900),
        "slept-a-little": codex("rate_limit;retry_after=2;times=1"),
        "unknown-session": codex("plain", resume=str(uuid.UUID(int=7))),
        "resumed": codex("usage;in=1000;out=50", again=True),
    },
    "gemini": {
        "plain": gemini("plain"),
        "write-file": gemini("write_file;path=note.txt"),
        "tool-error": gemini("bash;cmd=exit%207"),
        "status-401": gemini("err401"),
        "status-403": gemini("err403"),
        "status-400": gemini("err400"),
        "status-429": gemini("rate_limit"),
        "status-429-later": gemini("rate_limit;retry_after=3600"),
        "daily-quota": gemini("usage_limit"),
        "status-500": gemini("err500"),
        "status-503": gemini("overloaded"),
        "max-turns": gemini("loop;cmd=true", turns=1),
        "sigterm": gemini("hang", signal=signal.SIGTERM),
        "sigkill": gemini("hang", signal=signal.SIGKILL),
        "no-auth": gemini("plain", no_key=True),
        "untrusted": gemini("plain", untrusted=True),
        "bad-flag": gemini("plain", args=GEMINI + ["--no-such-flag"]),
        "bad-mode": gemini("plain", args=["-o", "stream-json", "--approval-mode", "no-such"]),
        "empty": gemini("empty"),
        "loop": gemini("loop;cmd=true"),
        "unknown-session": gemini("plain", args=GEMINI + ["--resume", str(uuid.UUID(int=7))]),
        "json-format": gemini("plain", args=GEMINI, swap=("stream-json", "json")),
        "json-format-401": gemini("err401", args=GEMINI, swap=("stream-json", "json")),
        "resumed": gemini("usage;in=1000;out=50", again=True),
    },
    "opencode": {
        "plain": opencode("plain"),
        "write-file": opencode("write_file;path=note.txt"),
        "status-401": opencode("err401"),
        "status-400": opencode("err400"),
        "status-429": opencode("rate_limit;retry_after=1"),
        "status-500": opencode("err500"),
        "sigterm": opencode("hang", signal=signal.SIGTERM),
        "bad-flag": dict(provider="opencode", scenario="plain", args=OPENCODE + ["--no-such-flag"]),
        "empty": opencode("empty"),
        "sleeps": opencode("rate_limit;retry_after=3600", silent=900),
    },
}
SETTINGS = {
    "security": {"auth": {"selectedType": "gemini-api-key"}},
    "privacy": {"usageStatisticsEnabled": False},
    "telemetry": {"enabled": False},
    "general": {"enableAutoUpdate": False, "enableAutoUpdateNotification": False,
                "maxAttempts": 2},
}
OPENCODE_CONFIG = {
    "autoupdate": False, "share": "disabled", "enabled_providers": ["fake"],
    "model": "fake/fake-model", "small_model": "fake/fake-model",
    "provider": {"fake": {
        "npm": "@ai-sdk/openai-compatible", "name": "fake",
        "options": {"apiKey": "dummy"},
        "models": {"fake-model": {
            "name": "fake-model", "limit": {"context": 200000, "output": 8192},
            "cost": {"input": 3, "output": 15, "cache_read": 0.3}}}}},
}


class Case:
    def __init__(self, tools, port, name, case):
        self.case, self.name = case, name
        self.home = tempfile.mkdtemp(prefix="record-")
        self.work = os.path.join(self.home, "work")
        os.mkdir(self.work)
        port = 9 if case.get("refused") else port
        self.base = "http://127.0.0.1:%d/s/%s" % (port, case["scenario"])
        provider = case["provider"]
        self.program = os.path.join(tools, provider, "node_modules", ".bin", provider)
        self.session = str(uuid.uuid4())

    def env(self):
        case, provider = self.case, self.case["provider"]
        env = {"PATH": os.environ["PATH"], "HOME": self.home, "TERM": "xterm-256color",
               "LANG": "C.UTF-8", "TZ": "UTC", "TMPDIR": self.home}
        if provider == "claude":
            env.update(DISABLE_AUTOUPDATER="1", CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
                       CLAUDE_CODE_MAX_RETRIES="2", API_TIMEOUT_MS="300000", IS_SANDBOX="1",
                       ANTHROPIC_BASE_URL=self.base)
            if case.get("token"):
                env["CLAUDE_CODE_OAUTH_TOKEN"] = "sk-ant-oat01-dummy"
            elif not case.get("no_key"):
                env["ANTHROPIC_API_KEY"] = "sk-ant-dummy"
        elif provider == "codex":
            env.update(CODEX_HOME=os.path.join(self.home, ".codex"), FAKE_KEY="sk-dummy")
            os.makedirs(env["CODEX_HOME"], exist_ok=True)
        elif provider == "gemini":
            env.update(GEMINI_CLI_NO_RELAUNCH="true", GEMINI_TELEMETRY_ENABLED="false",
                       GEMINI_CLI_HOME=self.home, GOOGLE_GEMINI_BASE_URL=self.base)
            if not case.get("untrusted"):
                env["GEMINI_CLI_TRUST_WORKSPACE"] = "true"
            settings = json.loads(json.dumps(SETTINGS))
            if case.get("turns"):
                settings["model"] = {"maxSessionTurns": case["turns"]}
            if case.get("no_key"):
                del settings["security"]
            else:
                env["GEMINI_API_KEY"] = "dummy"
            os.makedirs(os.path.join(self.home, ".gemini"), exist_ok=True)
            with open(os.path.join(self.home, ".gemini", "settings.json"), "w") as file:
                json.dump(settings, file)
        else:
            config = json.loads(json.dumps(OPENCODE_CONFIG))
            config["provider"]["fake"]["options"]["baseURL"] = self.base + "/v1"
            env.update(OPENCODE_DISABLE_AUTOUPDATE="1", OPENCODE_DISABLE_MODELS_FETCH="1",
                       OPENCODE_DISABLE_LSP_DOWNLOAD="1", OPENCODE_DISABLE_DEFAULT_PLUGINS="1",
                       OPENCODE_CONFIG_CONTENT=json.dumps(config))
        return env

    def argv(self, resume):
        case, provider = self.case, self.case["provider"]
        args = [b if a == case["swap"][0] else a for a in case["args"] for b in [case["swap"][1]]] \
            if case.get("swap") else list(case["args"])
        if provider in ("claude", "gemini") and "--resume" not in args:
            args += ["--resume" if resume else "--session-id", self.session]
        if provider == "codex":
            table = ('model_providers.fake={name="fake",base_url="%s/v1",env_key="FAKE_KEY",'
                     'wire_api="responses",request_max_retries=1,stream_max_retries=1}' % self.base)
            resume = resume or case.get("resume")
            args += ["resume"] if resume else []
            args += CODEX + [table] + case.get("extra", [])
            args += [resume, "-"] if resume else ["-"]
        return [self.program] + args

    def run(self, resume=None):
        child = subprocess.Popen(self.argv(resume), cwd=self.work, env=self.env(),
                                 stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE, start_new_session=True)
        if self.case.get("signal") or self.case.get("silent"):
            def send():
                # By then it has asked, and waits for an answer that never comes.
                time.sleep(8)
                os.killpg(child.pid, self.case.get("signal", signal.SIGTERM))
            threading.Thread(target=send, daemon=True).start()
        try:
            out, err = child.communicate(b"Say hello to the fake server.\n", timeout=240)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            out, err = child.communicate()
        return child.returncode, self.clean(out), self.clean(err)

    def clean(self, data):
        """Without what differs from machine to machine."""
        text = data.decode("utf-8", "replace")
        text = text.replace(self.home, "/agent").replace(self.home[1:], "agent")
        text = text.replace(os.path.dirname(os.path.dirname(self.program)), "/opt")
        return re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:8080", text)


def record(tools, port, out, provider, name, case):
    job = Case(tools, port, name, case)
    code, text, err = job.run()
    if case.get("again"):
        session = job.session
        if provider == "codex":
            session = json.loads(text.splitlines()[0])["thread_id"]
        code, text, err = job.run(session)
    os.makedirs(os.path.join(out, provider), exist_ok=True)
    stem = os.path.join(out, provider, name)
    meta = {}
    if os.path.exists(stem + ".json"):
        with open(stem + ".json") as file:
            meta = json.load(file)
    meta.update(origin="recorded", now=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
    meta.pop("exit_code", None), meta.pop("signal", None)
    meta.update({"signal": -code} if code < 0 else {"exit_code": code})
    if case.get("silent"):
        # Ended from here, as `orchestrate` ends one that prints nothing for so long.
        meta.pop("signal", None), meta.pop("exit_code", None)
        meta["silent_for_s"] = case["silent"]
    meta["stderr_tail"] = err.splitlines()[-10:]
    if len(err.splitlines()) > 10:
        meta["stderr_head"] = err.splitlines()[:12]
    meta.setdefault("expect", {})
    with open(stem + ".jsonl", "w") as file:
        file.write(text)
    with open(stem + ".json", "w") as file:
        json.dump(meta, file, indent=1, ensure_ascii=False)
        file.write("\n")
    shutil.rmtree(job.home, ignore_errors=True)
    print(provider, name, "->", code, len(text), flush=True)


def main():
    tools, out, wanted = sys.argv[1], sys.argv[2], sys.argv[3:]
    server = subprocess.Popen([sys.executable, os.path.join(HERE, "fake_api.py")],
                              stdout=subprocess.PIPE, text=True)
    port = json.loads(server.stdout.readline())["port"]
    jobs = [(p, n, c) for p, cases in CASES.items() for n, c in cases.items()
            if not wanted or p in wanted or "%s/%s" % (p, n) in wanted]
    lock = threading.Lock()

    def work():
        while True:
            with lock:
                if not jobs:
                    return
                job = jobs.pop(0)
            try:
                record(os.path.abspath(tools), port, out, *job)
            except Exception as error:
                print(job[0], job[1], "FAILED", repr(error), flush=True)
    threads = [threading.Thread(target=work) for _ in range(int(os.environ.get("JOBS", "3")))]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    server.terminate()


if __name__ == "__main__":
    main()
