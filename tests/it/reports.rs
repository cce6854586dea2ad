//! Reports of all kinds of runs, looked at in a real browser: what is in them, and that they fit.

use libtest_mimic::Trial;
use serde_json::Value;

use crate::web::Browser;
use crate::world::{World, trial};

/// A report, made of a workspace's newest run.
struct Sheet {
    world: World,
    browser: Browser,
}

impl Sheet {
    /// Nothing, if no browser is installed.
    fn of(world: World, name: &str) -> Option<Sheet> {
        world.run(&["report", "latest", "-o", "out.html"]).exits(0);
        let profile = world.outside("browser");
        std::fs::create_dir_all(&profile).unwrap();
        let Some(browser) = Browser::start(&profile) else {
            eprintln!("SKIPPED: chromium and chromedriver are not installed");
            return None;
        };
        browser.open(&format!("file://{}", world.path("out.html").display()));
        let sheet = Sheet { world, browser };
        sheet.fits();
        sheet.browser.picture(&format!("report-{name}"));
        Some(sheet)
    }

    /// It is one file that asks for nothing and runs nothing of others, and nothing of it is wider
    /// than a screen or a phone.
    fn fits(&self) {
        let browser = &self.browser;
        let parts = "return document.querySelectorAll('img, iframe, link, script[src]').length";
        assert_eq!(browser.script(parts), 0);
        assert_eq!(browser.script("return window.hacked"), Value::Null);
        for width in [390, 1100] {
            browser.resize(width, 900);
            browser.until("return document.documentElement.scrollWidth <= innerWidth + 1");
        }
    }

    /// The word for where the run stands.
    fn stands(&self, word: &str) -> &Sheet {
        let state = "return document.querySelector('header .state').textContent";
        assert_eq!(self.browser.script(state), word);
        self
    }

    fn says(&self, texts: &[&str]) -> &Sheet {
        let all = self.browser.script("return document.body.textContent");
        let all = all.as_str().unwrap_or_default();
        for text in texts {
            assert!(all.contains(text), "`{text}` is not in: {all}");
        }
        self
    }

    /// How each step of the workflow stands, as its line says.
    fn steps(&self, wanted: &[(&str, &str)]) -> &Sheet {
        let lines = self.browser.script(
            "return [...document.querySelectorAll('.steps summary')].map(line => \
             [line.querySelector('.step').textContent, line.querySelector('.state').textContent])",
        );
        let lines = lines.as_array().expect("lines").iter();
        let found: Vec<(&str, &str)> =
            lines.map(|line| (line[0].as_str().unwrap(), line[1].as_str().unwrap())).collect();
        for step in wanted {
            assert!(found.contains(step), "{step:?} is not among {found:?}");
        }
        self
    }
}

const LONG: &str = "version: '1.1'\nname: 'night </title><script>window.hacked=1</script>'\n\
    steps:\n\
    - { name: Many, command: [sh, -c, 'for n in $(seq 3000); do echo line $n of very many; \
    done'] }\n\
    - { name: Odd, command: [sh, -c, 'printf \
    \"caf\\\\303\\\\251 \\\\377 \\\\033[31m \\\\001 \\\\342\\\\200\\\\256\"'] }\n\
    - { name: Wide, command: [sh, -c, 'head -c 5000 /dev/zero | tr \"\\\\0\" w'] }\n\
    - { name: Bad, command: [sh, -c, 'echo \"<b>no</b> & rule\" >&2; exit 1'], retries: { max: 1, \
    delay_ms: 1 } }\n\
    - { name: Never, command: ['true'] }\n";

fn steps_that_print_much_and_oddly() {
    let world = World::with(LONG);
    world.run(&["run", "w.yaml"]).exits(1);
    let Some(sheet) = Sheet::of(world, "failed") else { return };
    sheet.stands("failed").says(&[
        "line 1 of very many",
        "line 3000 of very many",
        "left out here",
        "café \u{fffd}",
        "<b>no</b> & rule",
        "Command failed with exit code 1",
        "4 of 5",
    ]);
    sheet.steps(&[("Many", "completed"), ("Bad", "failed"), ("Never", "pending")]);
    let text = sheet.browser.script("return document.body.textContent");
    assert!(!text.as_str().unwrap().contains(['\u{202e}', '\x1b', '\x01']), "odd bytes are shown");
    let attempts = sheet.world.state()["steps"]["Bad"]["attempt"].clone();
    assert_eq!(attempts, 2);
}

fn a_run_of_a_fleet() {
    let world = World::with(
        "version: '1.1'\nsteps:\n\
         - { name: Plan, agent: architect, command: [echo, planned] }\n\
         - { name: Build, agent: engineer, command: [echo, built] }\n",
    );
    let workers = ["architect", "engineer"].map(|agent| world.start(&["worker", agent]));
    world.run(&["run", "--fleet", "w.yaml"]).exits(0);
    drop(workers);
    let Some(sheet) = Sheet::of(world, "fleet") else { return };
    sheet.stands("completed").says(&["by a fleet", "architect", "engineer", "planned", "built"]);
    sheet.steps(&[("Plan", "completed"), ("Build", "completed")]);
}

const GRIMOIRE: &str = "name: small\ndescription: Works until it is good.\nsteps:\n\
    - { name: write, type: agent, spell: \"Write\\nit.\", provider: robot }\n\
    - name: until-good\n  type: loop\n  max_iterations: 3\n  steps:\n\
    \x20 - { name: check, type: script, command: 'echo x >> tries; [ $(wc -l < tries) -gt 1 ]', \
    on_fail: continue, on_success: exit_loop }\n\
    - { name: test, type: script, command: 'echo not good >&2; exit 4' }\n";
const ROBOT: &str = "- answer: |\n    Done.\n\n    ```json\n    {\"success\": true, \"summary\": \
    \"wrote it all\", \"outputs\": {}, \"error\": null}\n    ```\n";

fn a_blocked_grimoire() {
    let world = World::with(GRIMOIRE);
    world.write("robot.yaml", ROBOT);
    world.write(
        ".orchestrate/config.yaml",
        "providers:\n  robot: { command: [orchestrate, offline, --script, robot.yaml], \
         input_mode: stdin }\n",
    );
    world.run(&["run", "w.yaml"]).exits(1);
    let Some(sheet) = Sheet::of(world, "grimoire") else { return };
    sheet.stands("blocked").says(&["Works until it is good.", "wrote it all", "not good"]);
    sheet.says(&["goes on with that step"]);
    sheet.steps(&[("write", "completed"), ("until-good", "completed"), ("test", "failed")]);
    sheet.steps(&[("until-good.0.check", "failed"), ("until-good.1.check", "completed")]);
}

const COSTS: &str = "name: costs\ndescription: What it costs.\nprovider: claudish\nnodes:\n\
    - { id: think, prompt: 'Think.' }\n\
    - { id: ask, depends_on: [think], approval: { message: 'Was it worth it?' } }\n\
    - { id: after, depends_on: [ask], bash: 'echo after' }\n";

fn a_cancelled_run_with_costs() {
    let world = World::with(COSTS);
    let transcript = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let transcript = transcript.join("tests/transcripts/claude/tool-error.jsonl");
    world.write("said.jsonl", std::fs::read(transcript).unwrap());
    world.write(
        ".orchestrate/config.yaml",
        "providers:\n  claudish: { command: [sh, -c, 'cat > /dev/null; cat said.jsonl'], \
         input_mode: stdin, adapter: claude }\n",
    );
    world.run(&["run", "w.yaml"]).exits(3);
    world.run(&["cancel", "latest"]).exits(0);
    let Some(sheet) = Sheet::of(world, "cancelled") else { return };
    sheet.stands("cancelled").says(&["Cost", "$0.", "Tokens in", "-> Bash: exit 7"]);
    sheet.says(&["Was it worth it?", "2 of 3"]);
    sheet.steps(&[("think", "completed"), ("after", "pending")]);
}

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("reports/steps that print much and oddly", steps_that_print_much_and_oddly),
        trial("reports/a run of a fleet", a_run_of_a_fleet),
        trial("reports/a blocked grimoire", a_blocked_grimoire),
        trial("reports/a cancelled run with costs", a_cancelled_run_with_costs),
    ]
}
