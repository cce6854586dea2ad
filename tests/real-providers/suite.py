#!/usr/bin/env python3
"""Runs workflows and tasks with the real command lines of providers, against the fake API.

    suite.py ORCHESTRATE TOOLS [PROVIDER[/CASE]]...

ORCHESTRATE is the program, TOOLS has a directory for each provider with its npm package in it.
Prints a line for each case, and exits with 1 if one failed.
"""
import json, os, shutil, signal, subprocess, sys, tempfile, threading, time

HERE = os.path.dirname(os.path.abspath(__file__))
PROVIDERS = ("claude", "codex", "gemini", "opencode")
# The slowest and hungriest, which is tried for what is its own.
OF_OPENCODE = ("plain", "writes", "empty", "empty-node", "empty-task", "sleeps", "colored",
               "asks-for-permission", "not-logged-in", "test", "removed-option", "killed-worker")
# What only some of them do.
ONLY = {"many-at-a-limit": ("codex",), "loops": ("gemini",), "sleeps": ("codex", "opencode"),
        "sleeps-a-little": ("codex",), "asks-for-permission": ("opencode",),
        "not-logged-in": ("opencode",), "resets-in-words": ("claude",)}


class Fake:
    """The fake API, and what it was asked."""
    def __init__(self):
        self.log = tempfile.mktemp(prefix="fake-api-")
        argv = [sys.executable, os.path.join(HERE, "fake_api.py"), "--log", self.log]
        self.child = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        self.port = json.loads(self.child.stdout.readline())["port"]

    def requests(self, marker):
        """Requests whose prompt holds a text, oldest first."""
        with open(self.log) as file:
            lines = [json.loads(line) for line in file if line.endswith("\n")]
        return [line for line in lines
                if line.get("kind") == "request" and marker in line.get("prompt_head", "")]

    def stop(self):
        self.child.terminate()
        self.child.wait()
        os.unlink(self.log)


class Bench:
    """A workspace for one case."""
    def __init__(self, program, tools, fake, provider, name):
        self.program, self.fake, self.provider = program, fake, provider
        self.dir = tempfile.mkdtemp(prefix="real-%s-" % provider)
        self.mark = os.path.basename(self.dir)
        home = os.path.join(self.dir, "home")
        self.work = os.path.join(self.dir, "work")
        os.makedirs(self.work), os.makedirs(home)
        paths = [os.path.join(tools, p, "node_modules", ".bin") for p in PROVIDERS]
        base = "http://127.0.0.1:%d" % fake.port
        self.env = {
            "PATH": os.pathsep.join(paths + [os.environ["PATH"]]), "HOME": home,
            "LANG": "C.UTF-8", "TERM": "dumb", "TZ": "UTC", "TMPDIR": self.dir,
            # By this every process of the case is known.
            "ORCHESTRATE_SUITE": self.mark, "A_SECRET_OF_OTHERS": "not-for-agents",
        }
        if provider == "claude":
            self.env.update(ANTHROPIC_BASE_URL=base, ANTHROPIC_API_KEY="sk-ant-dummy")
        elif provider == "codex":
            self.env.update(CODEX_HOME=os.path.join(home, ".codex"), OPENAI_FAKE_KEY="sk-dummy")
            self.put(os.path.join(home, ".codex", "config.toml"),
                     'model_provider = "fake"\nmodel = "gpt-5.5-codex"\n'
                     '[model_providers.fake]\nname = "fake"\nbase_url = "%s/v1"\n'
                     'env_key = "OPENAI_FAKE_KEY"\nwire_api = "responses"\n'
                     'request_max_retries = 0\nstream_max_retries = 0\n' % base)
        elif provider == "opencode":
            model = {"name": "fake-model", "limit": {"context": 200000, "output": 8192},
                     "cost": {"input": 3, "output": 15, "cache_read": 0.3}}
            config = {"autoupdate": False, "share": "disabled", "enabled_providers": ["fake"],
                      "provider": {"fake": {"npm": "@ai-sdk/openai-compatible", "name": "fake",
                                            "options": {"baseURL": base + "/v1", "apiKey": "dummy"},
                                            "models": {"fake-model": model}}},
                      "model": "fake/fake-model", "small_model": "fake/fake-model"}
            self.env.update({"OPENCODE_CONFIG_CONTENT": json.dumps(config)}, **{
                "OPENCODE_DISABLE_" + what: "1" for what in (
                    "AUTOUPDATE", "MODELS_FETCH", "LSP_DOWNLOAD", "DEFAULT_PLUGINS")})
        else:
            self.env.update(GOOGLE_GEMINI_BASE_URL=base, GEMINI_API_KEY="dummy",
                            GEMINI_CLI_HOME=home)
            settings = {"security": {"auth": {"selectedType": "gemini-api-key"}},
                        "privacy": {"usageStatisticsEnabled": False},
                        "general": {"enableAutoUpdate": False, "maxAttempts": 1}}
            self.put(os.path.join(home, ".gemini", "settings.json"), json.dumps(settings))

    def put(self, path, text):
        path = os.path.join(self.work, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(text)

    def read(self, path):
        with open(os.path.join(self.work, path)) as file:
            return file.read()

    def workflow(self, scenario, more=""):
        models = {"gemini": "gemini-3.8-flash", "opencode": "fake/fake-model"}
        model = models.get(self.provider, "")
        params = "provider_params: { model: '%s', sandbox_mode: danger-full-access }" % model
        if self.provider == "claude":
            params = "provider_params: { model: sonnet }"
        if self.provider == "opencode":
            params = "provider_params: { model: '%s' }" % model
        # Whoever rests rests shortly here.
        self.put(".orchestrate/config.yaml",
                 "durability: process\nlimits: { back_off_sec: 1, back_off_max_sec: 2 }\n")
        self.put("p.md", "Task %s.\n[[fake:%s]]\n" % (self.mark, scenario))
        self.put("w.yaml", 'version: "1.1"\nsteps:\n  - name: Ask\n    provider: %s\n    %s\n'
                 '    input_file: p.md\n    output_file: out.md\n%s' % (self.provider, params, more))

    def start(self, *args):
        return subprocess.Popen([self.program, *args], cwd=self.work, env=self.env,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def call(self, *args, limit=100):
        child = self.start(*args)
        limit = max(limit, 240) if self.provider == "opencode" else limit
        try:
            out, _ = child.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            child.kill()
            raise AssertionError("`%s` took too long" % " ".join(args))
        return child.returncode, out

    def step(self):
        return json.loads(self.read(".orchestrate/runs/latest/state.json"))["steps"]["Ask"]

    def processes(self):
        """What of this case still runs."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open("/proc/%s/environ" % pid, "rb") as file:
                    if ("ORCHESTRATE_SUITE=" + self.mark).encode() not in file.read():
                        continue
                with open("/proc/%s/cmdline" % pid, "rb") as file:
                    found.append((int(pid), file.read().replace(b"\0", b" ").decode()[:80]))
            except OSError:
                pass
        return found

    def until(self, what, holds, limit=60):
        end = time.time() + limit
        while time.time() < end:
            try:
                found = holds()
            except (OSError, ValueError, KeyError):
                found = None
            if found:
                return found
            time.sleep(0.1)
        raise AssertionError("never: " + what)

    def alone(self):
        assert not self.processes(), "left running: %s" % self.processes()

    def remove(self):
        for pid, _ in self.processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        shutil.rmtree(self.dir, ignore_errors=True)


def failed(bench, scenario, kind, more="", code=1):
    bench.workflow(scenario, more)
    status, out = bench.call("run", "w.yaml")
    assert status == 1, out
    step = bench.step()
    assert step["exit_code"] == code, step
    verdict = step["error"]["context"]["verdict"]
    assert verdict["kind"] == kind, verdict
    bench.alone()
    return step


def plain(bench):
    bench.workflow("plain text=Fine.")
    status, out = bench.call("run", "w.yaml")
    assert status == 0, out
    step = bench.step()
    nonce = bench.fake.requests(bench.mark)[-1]["nonce"]
    assert step["output"] == "Fine. " + nonce == bench.read("out.md"), step
    usage = step["usage"]
    assert usage["input_tokens"] == 11 and usage["output_tokens"] == 7, usage
    assert ("cost_usd" in usage) == (bench.provider in ("claude", "opencode")), usage
    log = bench.read(".orchestrate/runs/latest/logs/Ask.stdout")
    assert json.loads(log.splitlines()[0])["type"], log
    assert "not-for-agents" not in log
    _, told = bench.call("logs", "latest", "Ask", "--stdout")
    assert told.strip() == step["output"], told
    _, told = bench.call("status", "latest")
    assert "11 tokens in, 7 out" in told, told
    bench.alone()


def writes(bench):
    bench.workflow("write_file path=note.txt")
    status, out = bench.call("run", "w.yaml")
    assert status == 0, out
    nonce = bench.fake.requests(bench.mark)[-1]["nonce"]
    assert bench.read("note.txt").strip() == nonce
    assert "DONE" in bench.step()["output"]
    _, told = bench.call("logs", "latest", "Ask", "--stdout")
    assert "-> " in told, told
    bench.alone()


def inherits(bench):
    bench.workflow('bash cmd="env | grep SECRET_OF || echo it has none"')
    status, out = bench.call("run", "w.yaml")
    assert status == 0, out
    assert "not-for-agents" not in bench.read(".orchestrate/runs/latest/logs/Ask.stdout")
    results = [r for request in bench.fake.requests(bench.mark) for r in request["results"]]
    assert "it has none" in json.dumps(results), results


def status_401(bench):
    step = failed(bench, "err401", "needs_person", "    retries: { max: 3, delay_ms: 1 }\n")
    assert step["attempt"] == 1, "a person must act, so it is not tried again"


def status_429(bench):
    failed(bench, "rate_limit", "back_off")


def status_500(bench):
    failed(bench, "err500", "back_off")


def status_529(bench):
    failed(bench, "overloaded", "back_off")


def limit_with_a_time(bench):
    scenario = {"claude": "usage_limit reset=3600", "codex": "usage_limit reset=3600",
                "gemini": "rate_limit retry_after=3600"}[bench.provider]
    if bench.provider == "claude":
        bench.env["CLAUDE_CODE_OAUTH_TOKEN"] = "sk-ant-oat01-dummy"
        del bench.env["ANTHROPIC_API_KEY"]
    bench.workflow(scenario)
    child = bench.start("run", "w.yaml")
    try:
        def rests():
            _, out = bench.call("status", "latest", "--json")
            step = json.loads(out.splitlines()[-1])["steps"][0]
            return step if step["state"] == "resting" else None
        step = bench.until("it rests", rests)
        until = time.strptime(step["until"][:19], "%Y-%m-%dT%H:%M:%S")
        import calendar
        wait = calendar.timegm(until) - time.time()
        assert 3300 < wait < 3700, (step, wait)
    finally:
        child.send_signal(signal.SIGTERM)
        child.communicate(timeout=30)
    assert child.returncode == 143, child.returncode
    bench.alone()


def times_out(bench):
    bench.workflow("hang", "    timeout_sec: 6\n")
    status, out = bench.call("run", "w.yaml")
    step = bench.step()
    assert status == 1 and step["exit_code"] == 124, out
    assert step["error"]["class"] == "transient", step
    bench.alone()


def goes_on_after_a_failure(bench):
    # Whatever a provider tries by itself, the first attempt ends before it is let through.
    times = {"claude": 4, "codex": 1, "gemini": 1}[bench.provider]
    bench.workflow("overloaded times=%d" % times, "    retries: { max: 3, delay_ms: 1 }\n")
    status, out = bench.call("run", "w.yaml")
    assert status == 0, out
    step = bench.step()
    assert step["attempt"] > 1, step
    if bench.provider == "gemini":
        # It keeps no conversation in which nothing was answered; a new one is begun then.
        return
    sessions = {request["session"] for request in bench.fake.requests(bench.mark)}
    assert len(sessions) == 1, sessions
    first = bench.read(".orchestrate/runs/latest/logs/Ask.1.stdout")
    assert step["usage"]["session"] in first, "the same conversation"


def goes_on_after_a_kill(bench):
    bench.workflow("hang")
    child = bench.start("run", "w.yaml")
    bench.until("it asks", lambda: bench.fake.requests(bench.mark))
    child.kill()
    child.communicate()
    bench.until("the agent ends with the process that started it", lambda: not bench.processes())
    bench.workflow("plain text=Again.")
    status, out = bench.call("resume", "latest")
    assert status == 0, out
    step = bench.step()
    assert step["output"].startswith("Again."), step
    if bench.provider == "claude":
        asked = bench.fake.requests(bench.mark)
        assert asked[-1]["session"] == asked[0]["session"] == step["usage"]["session"]
        assert len(asked[-1]["roles"]) > len(asked[0]["roles"]), "it knows what was said"
    bench.alone()


def nodes_go_on(bench):
    """A node knows what the node before it said, and is counted for itself alone."""
    model = {"gemini": "gemini-3.8-flash", "claude": "sonnet"}.get(bench.provider)
    ask = "Task %s. [[fake:usage in=%d out=%d]]"
    nodes = [("first", 1000, ""), ("second", 2000, "depends_on: [first]"),
             ("third", 3000, "depends_on: [second]\n    context: fresh")]
    bench.put("w.yaml", "name: talk\ndescription: one conversation\nprovider: %s\n%snodes:\n" % (
        bench.provider, "model: %s\n" % model if model else "") + "".join(
            "  - id: %s\n    prompt: '%s'\n    %s\n" % (
                name, ask % (bench.mark, tokens, tokens // 10), more)
            for name, tokens, more in nodes))
    status, out = bench.call("run", "w.yaml")
    assert status == 0, out
    steps = json.loads(bench.read(".orchestrate/runs/latest/state.json"))["steps"]
    used = [steps[name]["usage"]["input_tokens"] for name, _, _ in nodes]
    assert used == [1000, 2000, 3000], used
    asked = [len(request["roles"]) for request in bench.fake.requests(bench.mark)]
    assert asked[1] > asked[0] == asked[2], asked
    sessions = [steps[name]["usage"]["session"] for name, _, _ in nodes]
    # Only claude can go on from a conversation and leave it as it was.
    assert len(set(sessions)) == (3 if bench.provider == "claude" else 2), sessions
    if bench.provider == "claude":
        costs = [steps[name]["usage"]["cost_usd"] for name, _, _ in nodes]
        assert abs(costs[1] - 2 * costs[0]) < 1e-9 and abs(costs[2] - 3 * costs[0]) < 1e-9, costs
    bench.alone()


def cancel_leaves_nothing(bench):
    bench.workflow('bash cmd="sleep 300"' if bench.provider != "claude"
                   else 'bash cmd="tail -f /dev/null"')
    child = bench.start("run", "w.yaml")
    tool = ("sleep 300", "tail -f")
    bench.until("its tool runs", lambda: [p for p in bench.processes()
                                          if p[1].startswith(tool)])
    child.send_signal(signal.SIGTERM)
    child.communicate(timeout=40)
    assert child.returncode == 143, child.returncode
    bench.alone()


def worker(bench):
    bench.put(".orchestrate/config.yaml", "durability: process\n")
    options = ["--provider", bench.provider]
    if bench.provider == "gemini":
        options += ["--model", "gemini-3.8-flash"]
    text = "Task %s.\n[[fake:plain text=Done.]]" % bench.mark
    status, out = bench.call("enqueue", "engineer", text, *options)
    assert status == 0, out
    status, out = bench.call("worker", "engineer", "--once")
    assert status == 0, out
    found = [os.path.join(top, name)
             for top, _, names in os.walk(os.path.join(bench.work, "processed"))
             for name in names if name.endswith(".status.json") or name.endswith(".json")]
    assert found, out
    statuses = [json.load(open(path)) for path in found]
    done = [s for s in statuses if s.get("schema") == "status/v1"]
    assert done and done[0]["success"] and done[0]["usage"]["input_tokens"] == 11, done
    assert done[0]["session"], done
    bench.alone()


def slow(bench):
    bench.workflow("slow secs=6", "    timeout_sec: 60\n")
    status, out = bench.call("run", "w.yaml")
    assert status == 0, out
    nonce = bench.fake.requests(bench.mark)[-1]["nonce"]
    assert nonce in bench.step()["output"], bench.step()
    bench.alone()


def leaves_nothing(bench):
    """What a tool left behind is ended after a normal end too, and does not hold it up."""
    bench.workflow('bash cmd="nohup sleep 271 > /dev/null 2>&1 & echo begun"')
    began = time.time()
    status, out = bench.call("run", "w.yaml")
    assert status == 0, out
    assert time.time() - began < 90, "waited for what was left"
    bench.alone()


def json_contract(bench):
    model = {"gemini": "gemini-3.8-flash", "claude": "sonnet"}.get(bench.provider)
    bench.put("w.yaml", "name: form\ndescription: an answer with a form\nprovider: %s\n%snodes:\n"
              "  - id: Ask\n    prompt: 'Task %s. [[fake:json status=fine]]'\n"
              "    output_format: { type: object, required: [status] }\n" % (
                  bench.provider, "model: %s\n" % model if model else "", bench.mark))
    status, out = bench.call("run", "w.yaml")
    assert status == 0, out
    assert json.loads(bench.step()["output"])["status"] == "fine", bench.step()
    bench.alone()


def fleet(bench, scenario, tasks=3, more="back_off_sec: 1, back_off_max_sec: 2"):
    """Puts tasks out for a fleet, and says how to start a worker of it."""
    bench.put(".orchestrate/config.yaml", "durability: process\ndefault_provider: %s\n"
              "limits: { %s }\n" % (bench.provider, more))
    options = ["--model", "gemini-3.8-flash"] if bench.provider == "gemini" else []
    if bench.provider == "opencode":
        bench.put(".orchestrate/config.yaml", bench.read(".orchestrate/config.yaml")
                  + "providers: { opencode: { defaults: { model: fake/fake-model } } }\n")
    for number in range(tasks):
        text = "Task %s %d.\n[[fake:%s]]" % (bench.mark, number, scenario)
        status, out = bench.call("enqueue", "engineer", text, *options)
        assert status == 0, out


def ended(bench, folder):
    top = os.path.join(bench.work, folder)
    return [n for _, _, names in os.walk(top) for n in names if n.endswith(".task")]


def parked_for_a_person(bench):
    """A dead login costs one question, and no task."""
    fleet(bench, "err401")
    status, out = bench.call("worker", "engineer", "--drain", "--concurrency", "1")
    assert status == 3, out
    first = {request["prompt_head"][:200] for request in bench.fake.requests(bench.mark)}
    assert len(first) == 1, first
    assert not ended(bench, "failed") and len(ended(bench, "inbox")) == 3
    _, told = bench.call("status")
    assert "until a person has acted" in told, told
    status, told = bench.call("provider", "resume", bench.provider)
    assert status == 0 and "may be asked again" in told, told
    bench.alone()


def parked_for_a_time(bench):
    """A limit that one worker meets is heeded by the other, and no task is lost over it."""
    if bench.provider == "claude":
        bench.env["CLAUDE_CODE_OAUTH_TOKEN"] = "sk-ant-oat01-dummy"
        del bench.env["ANTHROPIC_API_KEY"]
    fleet(bench, "rate_limit retry_after=3600" if bench.provider == "gemini"
          else "usage_limit reset=3600")
    status, out = bench.call("worker", "engineer", "--drain")
    assert status == 3, out
    asked = len(bench.fake.requests(bench.mark))
    status, out = bench.call("worker", "engineer", "--drain", "--concurrency", "3")
    assert status == 3, out
    assert len(bench.fake.requests(bench.mark)) == asked, "the other asks nothing"
    assert not ended(bench, "failed") and len(ended(bench, "inbox")) == 3
    bench.alone()


def many_at_a_limit(bench):
    """Of tasks that are met by a limit each in turn, all are done, and none is asked too often."""
    fleet(bench, "rate_limit times=2", tasks=6)
    children = [bench.start("worker", "engineer", "--drain", "--concurrency", "3")
                for _ in range(2)]
    for child in children:
        out, _ = child.communicate(timeout=100)
        assert child.returncode == 0, out
    assert len(ended(bench, "processed")) == 6 and not ended(bench, "failed")
    asked = len(bench.fake.requests(bench.mark))
    assert asked == 18, "each is answered at the third time: %d" % asked
    bench.alone()


def empty(bench):
    """An empty answer is no answer, and the next attempt may do better."""
    step = failed(bench, "empty", "back_off", "    retries: { max: 1, delay_ms: 1 }\n")
    assert step["attempt"] == 2, step
    assert "empty" in step["error"]["message"], step
    assert "Ripgrep" not in json.dumps(step["error"]), "noise stands in place of the reason"


def node(bench, scenario, more=""):
    """Writes a workflow with one node."""
    model = {"gemini": "gemini-3.8-flash", "claude": "sonnet", "opencode": "fake/fake-model"}
    model = model.get(bench.provider)
    bench.put(".orchestrate/config.yaml",
              "durability: process\nlimits: { back_off_sec: 1, back_off_max_sec: 2 }\n")
    bench.put("w.yaml", "name: one\ndescription: one node\nprovider: %s\n%snodes:\n"
              "  - id: Ask\n    prompt: 'Task %s. [[fake:%s]]'\n%s" % (
                  bench.provider, "model: %s\n" % model if model else "", bench.mark, scenario, more))


def empty_node(bench):
    """The same for a node, which is tried again by default."""
    node(bench, "empty", "    retry: { max_attempts: 1, delay_ms: 1000 }\n")
    status, out = bench.call("run", "w.yaml")
    assert status == 1, out
    step = bench.step()
    assert step["attempt"] == 2 and "empty" in step["error"]["message"], step


def waiting(bench):
    """The tasks in the inbox."""
    return [n for n in os.listdir(os.path.join(bench.work, "inbox", "engineer"))
            if n.endswith(".task")]


def empty_task(bench):
    """The same for a free task: it goes back to its inbox."""
    fleet(bench, "empty", tasks=1, more="back_off_sec: 1000, back_off_max_sec: 1000")
    child = bench.start("worker", "engineer")
    try:
        bench.until("its account is parked", lambda: "empty" in bench.call("status")[1])
        bench.until("its task goes back", lambda: waiting(bench))
    finally:
        child.send_signal(signal.SIGTERM)
        child.communicate(timeout=60)
    assert not ended(bench, "failed") and not ended(bench, "processed")
    bench.alone()


def killed_worker(bench):
    """An agent ends with its worker, however that ends."""
    fleet(bench, "hang", tasks=1)
    child = bench.start("worker", "engineer")
    bench.until("it asks", lambda: bench.fake.requests(bench.mark), limit=120)
    child.kill()
    bench.until("the agent ends with its worker", lambda: not bench.processes(), limit=5)
    child.communicate()
    assert not ended(bench, "failed") and not ended(bench, "processed")


def loops(bench):
    """gemini stops a model that repeats itself, and calls that a success."""
    step = failed(bench, "loop cmd=true", "back_off")
    assert "Loop detected" in step["error"]["message"], step


def colored(bench):
    """The caller's wish for colors does not reach an agent."""
    bench.env.update(FORCE_COLOR="1", CLICOLOR_FORCE="1")
    bench.workflow('bash cmd="env | grep _COLOR || echo no colors"')
    status, out = bench.call("run", "w.yaml")
    assert status == 0, out
    assert "\x1b" not in bench.step()["output"], bench.step()
    results = [r for request in bench.fake.requests(bench.mark) for r in request["results"]]
    assert "FORCE" not in json.dumps(results), results


def patient(bench):
    """Lets codex try again by itself, as it does where its settings do not forbid it."""
    config = os.path.join(bench.env["CODEX_HOME"], "config.toml")
    bench.put(config, bench.read(config).replace("max_retries = 0", "max_retries = 2"))


def sleeps(bench):
    """One that waits by itself for an hour is ended, and its account rests."""
    fleet(bench, "rate_limit retry_after=3600", tasks=1, more="silent_sec: 20, silent_at_limit_sec: 5, "
          "back_off_max_sec: 1000, back_off_sec: 1000")
    if bench.provider == "codex":
        patient(bench)
    child = bench.start("worker", "engineer", "--drain")
    try:
        bench.until("it asks", lambda: bench.fake.requests(bench.mark), limit=120)
        bench.until("its account is parked", lambda: "is parked until" in bench.call("status")[1])
        # The task is not being executed any more: it waits in its inbox.
        bench.until("its task goes back", lambda: len(waiting(bench)) == 1, limit=120)
    finally:
        child.send_signal(signal.SIGTERM)
        child.communicate(timeout=60)
    assert not ended(bench, "failed"), "no task is lost"
    bench.alone()


def sleeps_a_little(bench):
    """A wait of seconds is left to the provider."""
    bench.workflow("rate_limit retry_after=2 times=1")
    patient(bench)
    status, out = bench.call("run", "w.yaml")
    assert status == 0, out
    assert bench.step()["attempt"] == 1, bench.step()


def resets_in_words(bench):
    """A usage limit without an event tells its end in words."""
    bench.env["CLAUDE_CODE_OAUTH_TOKEN"] = "sk-ant-oat01-dummy"
    del bench.env["ANTHROPIC_API_KEY"]
    fleet(bench, "usage_limit reset=7200", tasks=1)
    status, out = bench.call("worker", "engineer", "--drain")
    assert status == 3, out
    log = [os.path.join(top, n) for top, _, names in os.walk(bench.work) for n in names
           if n.endswith(".stdout")]
    lines = [line for path in log for line in open(path)]
    words = [json.loads(line).get("result") for line in lines if '"type":"result"' in line]
    bench.put("answer", words[-1])
    bench.put(".orchestrate/config.yaml", "durability: process\ndefault_provider: words\nproviders:\n"
              "  words: { command: [cat, answer], input_mode: stdin }\n")
    bench.call("enqueue", "qa", "Task.")
    status, out = bench.call("worker", "qa", "--drain")
    assert status == 3, out
    _, out = bench.call("status", "--json")
    parked = {p["account"]: p for p in json.loads(out.splitlines()[-1])["parked"]}
    assert parked["words"]["cause"] == "limit", (words, parked)
    hour = lambda who: parked[who]["until"][:13]
    assert hour("words") == hour("claude"), parked


def asks_for_permission(bench):
    """What opencode's own settings say `ask` for is not done, unless `permission_mode` says so."""
    config = json.loads(bench.env["OPENCODE_CONFIG_CONTENT"])
    config["permission"] = {"edit": "ask", "bash": "ask"}
    bench.env["OPENCODE_CONFIG_CONTENT"] = json.dumps(config)
    step = failed(bench, "write_file path=note.txt", "fail")
    assert "not allowed" in step["error"]["message"], step
    assert not os.path.exists(os.path.join(bench.work, "note.txt"))
    bench.put("w.yaml", bench.read("w.yaml").replace("{ model:", "{ permission_mode: auto, model:"))
    status, out = bench.call("run", "w.yaml")
    assert status == 0 and bench.read("note.txt"), out


def not_logged_in(bench):
    """Without a login, opencode is not asked: it would ask its vendor."""
    for name in [name for name in bench.env if name.startswith("OPENCODE_CONFIG")]:
        del bench.env[name]
    bench.workflow("plain")
    bench.put("w.yaml", bench.read("w.yaml").replace("model: 'fake/fake-model'", "model: ''"))
    status, out = bench.call("run", "w.yaml")
    assert status == 1 and "not logged in" in out, out
    assert bench.step()["error"]["context"]["verdict"]["kind"] == "needs_person"


def tests(bench):
    """`provider test` asks the server that is named, whatever its user's settings say."""
    base = "http://127.0.0.1:%d" % bench.fake.port
    bench.env["ORCHESTRATE_PROVIDER_BASE_URL"] = base + "/s/plain"
    elsewhere = "http://127.0.0.1:9"
    home = bench.env["HOME"]
    bench.env.update(ANTHROPIC_BASE_URL=elsewhere, GOOGLE_GEMINI_BASE_URL=elsewhere,
                     CODEX_HOME=os.path.join(home, ".codex"))
    bench.put(os.path.join(home, ".codex", "config.toml"), 'openai_base_url = "%s"\n' % elsewhere)
    status, out = bench.call("provider", "test", bench.provider)
    assert status == 0 and "answers: Hello from the fake API" in out, out
    bench.alone()


def removed_option(bench):
    """An option that the program does not have is named as that, and it is not called too old."""
    bench.workflow("plain")
    config = bench.read(".orchestrate/config.yaml")
    command = {"claude": "claude, -p, --no-such", "codex": "codex, exec, --no-such",
               "gemini": "gemini, --no-such", "opencode": "opencode, run, --no-such"}[bench.provider]
    bench.put(".orchestrate/config.yaml", config + "providers: { %s: { adapter: %s, command: [%s], "
              "input_mode: stdin } }\n" % (bench.provider, bench.provider, command))
    bench.put("w.yaml", 'version: "1.1"\nsteps:\n  - { name: Ask, provider: %s, input_file: p.md }\n'
              % bench.provider)
    status, out = bench.call("run", "w.yaml")
    assert status == 1 and "does not know" in out, out
    assert "the settings ask for what this version does not have" in out or "newer" in out, out


CASES = {
    "empty": empty, "empty-node": empty_node, "empty-task": empty_task,
    "killed-worker": killed_worker, "loops": loops, "colored": colored, "sleeps": sleeps,
    "sleeps-a-little": sleeps_a_little, "resets-in-words": resets_in_words,
    "asks-for-permission": asks_for_permission, "not-logged-in": not_logged_in, "test": tests,
    "removed-option": removed_option,
    "slow": slow, "leaves-nothing": leaves_nothing, "json-contract": json_contract,
    "parked-for-a-person": parked_for_a_person, "parked-for-a-time": parked_for_a_time,
    "plain": plain, "writes": writes, "inherits": inherits, "status-401": status_401,
    "status-429": status_429, "status-500": status_500, "status-529": status_529,
    "limit-with-a-time": limit_with_a_time, "times-out": times_out,
    "goes-on-after-a-failure": goes_on_after_a_failure,
    "goes-on-after-a-kill": goes_on_after_a_kill, "nodes-go-on": nodes_go_on,
    "cancel-leaves-nothing": cancel_leaves_nothing, "worker": worker,
    "many-at-a-limit": many_at_a_limit,
}


def main():
    program, tools, wanted = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2]), sys.argv[3:]
    fake = Fake()
    there = [p for p in PROVIDERS if os.path.exists(os.path.join(tools, p, "node_modules"))]
    jobs = [(p, n) for n in CASES for p in there
            if (p != "opencode" or n in OF_OPENCODE) and p in ONLY.get(n, PROVIDERS)]
    # The slowest first, so that nobody waits for them at the end.
    jobs.sort(key=lambda job: ("opencode", "gemini", "claude", "codex").index(job[0]))
    jobs = [(p, n) for p, n in jobs
            if not wanted or p in wanted or "%s/%s" % (p, n) in wanted or n in wanted]
    lock, wrong, total = threading.Lock(), [], len(jobs)

    def work():
        while True:
            with lock:
                if not jobs:
                    return
                provider, name = jobs.pop(0)
            bench, began = Bench(program, tools, fake, provider, name), time.time()
            try:
                CASES[name](bench)
                said = "ok"
            except Exception as error:
                said = "FAILED: %r" % (error,)
                with lock:
                    wrong.append((provider, name))
            finally:
                bench.remove()
            print("%s/%s: %s (%.1fs)" % (provider, name, said[:3000], time.time() - began),
                  flush=True)
    threads = [threading.Thread(target=work) for _ in range(int(os.environ.get("JOBS", "3")))]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    fake.stop()
    print("real providers: %d of %d cases are well" % (total - len(wrong), total))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
