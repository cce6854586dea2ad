//! Warns about things that a workflow needs and that are missing: prompt files in the workspace,
//! and programs, providers and secrets on this machine. These are warnings, because a worker on
//! another machine may have them. Also warns about variables on the command line that the workflow
//! does not read.

use std::collections::BTreeSet;
use std::ffi::OsStr;

use super::invocation::Invocation;
use crate::attempt::provider_check::{self, Program};
use crate::disk::fs::OnVolume as _;
use crate::exec;
use crate::run::load::Loaded;
use crate::template::Template;
use crate::view::stderr::talk;
use crate::workflow::lint::{self, MISSING_HERE};
use crate::workflow::plan::{Action, Block, Param, Plan, Script, ShellText, Step};
use crate::workflow::{Place, Problem};
use crate::yaml::problem::nearest;
use crate::yaml::{self, Node, Value};

/// Returns a warning for each missing file, program, provider or secret that a workflow needs.
pub(super) fn missing(invocation: &Invocation, document: &Node, plan: &Plan) -> Vec<Problem> {
    let mut looking = Looking {
        invocation,
        plan,
        written: BTreeSet::new(),
        asked: BTreeSet::new(),
        found: Vec::new(),
        steps: 0,
    };
    if let Some(list) = document.get("nodes").or(document.get("steps")) {
        looking.block(plan.root(), list);
    }
    looking.found
}

/// Prints the warnings of [`missing`] for a loaded workflow, without lints that its author allows.
pub(super) fn tell_missing(invocation: &Invocation, loaded: &Loaded) {
    let Ok(document) = yaml::parse(&loaded.text) else { return };
    let found = missing(invocation, &document, &loaded.plan);
    let found = lint::without_allowed(&loaded.text, found);
    for problem in found.iter().filter(|_| !invocation.common.quiet) {
        talk(problem.show(&loaded.file, &loaded.text));
    }
}

struct Looking<'l> {
    invocation: &'l Invocation,
    plan: &'l Plan,
    /// Files that steps write, by `output_file`.
    written: BTreeSet<String>,
    /// Providers that were already checked.
    asked: BTreeSet<String>,
    found: Vec<Problem>,
    /// Number of steps checked so far.
    steps: usize,
}

impl Looking<'_> {
    fn block(&mut self, block: &Block, list: &Node) {
        let Value::List(nodes) = &list.value else { return };
        for (step, node) in block.steps.iter().zip(nodes) {
            let inner = node.get("for_each").unwrap_or(node).get("steps");
            self.files(step, node);
            self.program(step, node);
            self.secrets(step, node);
            match (step.inner(), inner) {
                (Some(block), Some(list)) => self.block(block, list),
                _ => self.providers(step, node),
            }
            self.steps += 1;
            self.written
                .extend(step.output.file.as_ref().and_then(Template::literal).map(str::to_owned));
        }
    }

    fn warn(&mut self, place: Place, message: String, hint: &str) {
        let problem = Problem::warning(message).at(place).hint(hint);
        self.found.push(problem.lint(MISSING_HERE));
    }

    fn called(&self, step: &Step) -> String {
        format!("{} `{}`", self.plan.unit(), step.name)
    }

    fn files(&mut self, step: &Step, node: &Node) {
        let literal = |template: &Option<Template>| {
            template.as_ref().and_then(Template::literal).map(str::to_owned)
        };
        let mcp = node.get("mcp").and_then(Node::text).filter(|_| !step.asked().is_empty());
        let files = [
            ("input_file", literal(&step.input_file)),
            ("output_schema", literal(&step.output.schema)),
            ("mcp", mcp.map(str::to_owned)),
        ];
        for (key, file) in files {
            let Some(file) = file else { continue };
            if self.written.contains(&file)
                || self.invocation.workspace.join(&file).is_present_file()
            {
                continue;
            }
            let place = node.get(key).map_or(node.place, |node| node.place);
            let what = self.called(step);
            let hint = match self.steps {
                0 => format!("no {} before it could write the file", self.plan.unit()),
                _ => format!("a {} before it must write the file", self.plan.unit()),
            };
            self.warn(place, format!("`{key}` of {what} is `{file}`, which is not a file"), &hint);
        }
    }

    fn program(&mut self, step: &Step, node: &Node) {
        let (program, key) = match &step.action {
            Action::Exec { argv } => match argv.first().and_then(Template::literal) {
                Some(program) => (program, "command"),
                None => return,
            },
            Action::Shell { script: ShellText::Node(_) } => ("bash", "bash"),
            Action::Shell { script: ShellText::Spell(_) } => ("sh", "command"),
            Action::Script(Script { runtime, .. }) => (runtime.name(), "script"),
            _ => return,
        };
        if program == "orchestrate" || step.env.iter().any(|(name, _)| name == "PATH") {
            return;
        }
        let path = self.invocation.environment.get("PATH");
        let path = path.map_or(OsStr::new(""), |path| path.as_os_str());
        if let Err(error) = exec::locate(program, path, &self.invocation.workspace) {
            let place = match node.get(key).map(|node| (&node.value, node.place)) {
                Some((Value::List(words), place)) => words.first().map_or(place, |word| word.place),
                Some((_, place)) => place,
                None => node.place,
            };
            let what = self.called(step);
            let hint = match program.contains('/') && self.steps > 0 {
                true => "a step before it must write the program",
                false => "install it, or correct the name; a worker that has it can run the step",
            };
            self.warn(place, format!("{what} cannot run on this machine: {error}"), hint);
        }
    }

    fn providers(&mut self, step: &Step, node: &Node) {
        for name in step.asked() {
            let Some(provider) = self.plan.providers().get(name) else { continue };
            let sets_path = provider.env.iter().any(|(name, _)| name == "PATH");
            if sets_path || !self.asked.insert(name.to_owned()) {
                continue;
            }
            let (environment, cwd) = (&self.invocation.environment, &self.invocation.workspace);
            if let Program::Missing(reason) = provider_check::find(provider, environment, cwd) {
                let place = ["provider", "name", "id"].into_iter().find_map(|key| node.get(key));
                let what = self.called(step);
                let message =
                    format!("{what} asks `{name}`, which cannot run on this machine: {reason}");
                let hint = "`orchestrate provider ls` lists those that are here; a worker that has \
                            it can run the step";
                self.warn(place.map_or(node.place, |node| node.place), message, hint);
            }
        }
    }

    fn secrets(&mut self, step: &Step, node: &Node) {
        for name in &step.secrets {
            if self.invocation.environment.contains_key(name.as_str()) {
                continue;
            }
            let place = match node.get("secrets").map(|node| &node.value) {
                Some(Value::List(names)) => names.iter().find(|node| node.text() == Some(name)),
                _ => None,
            };
            let place = place.map_or(node.place, |node| node.place);
            let message = format!(
                "the secret `{name}` of {} is not set in this environment",
                self.called(step)
            );
            self.warn(place, message, "set the variable; a worker that has it can run the step");
        }
    }
}

/// Warns about variables on the command line that the workflow does not read. A context file may
/// serve several workflows, so its variables cause a warning only if a similar name is read.
pub(super) fn tell_unused(invocation: &Invocation, loaded: &Loaded, flags: &[&str], file: &[&str]) {
    let Ok(document) = yaml::parse(&loaded.text) else { return };
    let used = used(&document, loaded);
    let is_used = |key: &str| {
        let inside =
            |used: &String| used.strip_prefix(key).is_some_and(|rest| rest.starts_with('.'));
        used.contains(key) || used.contains(&key.replace('-', "_")) || used.iter().any(inside)
    };
    let given: BTreeSet<&str> = flags
        .iter()
        .chain(file)
        .copied()
        .chain(loaded.plan.context().keys().map(String::as_str))
        .collect();
    let mut names_root = false;
    loaded.plan.root().walk(&mut |step| names_root |= step.names_state(loaded.plan.providers()));
    for key in flags.iter().chain(file).filter(|key| !is_used(key)) {
        let free = used.iter().map(String::as_str).filter(|used| !given.contains(used));
        let near = nearest(key, free).or_else(|| nearest(key, used.iter().map(String::as_str)));
        // A step that refers to the run's directory or state file can read all variables there.
        if near.is_none() && (names_root || !flags.contains(key)) {
            continue;
        }
        invocation
            .note(format!("warning: nothing in `{}` reads the variable `{key}`", loaded.file));
        if let Some(near) = near {
            invocation.note(format!("  hint: did you mean `{near}`?"));
        }
    }
}

/// Returns the variables that a workflow may read: paths after `context` in templates, and all
/// names after a dot in spells.
fn used(document: &Node, loaded: &Loaded) -> BTreeSet<String> {
    let mut used = BTreeSet::new();
    let mut texts = Vec::new();
    all_texts(document, &mut texts);
    for text in texts {
        if let Ok(template) = Template::parse(text) {
            of_template(&template, &mut used);
        }
        of_spell(text, &mut used);
    }
    for provider in loaded.plan.providers().values() {
        provider.templates().for_each(|template| of_template(template, &mut used));
        provider.defaults.values().for_each(|param| of_param(param, &mut used));
    }
    loaded.spells.iter().for_each(|page| of_spell(&page.text, &mut used));
    used
}

fn all_texts<'n>(node: &'n Node, into: &mut Vec<&'n str>) {
    match &node.value {
        Value::Text(text) => into.push(text),
        Value::List(items) => items.iter().for_each(|item| all_texts(item, into)),
        Value::Map(pairs) => pairs.iter().for_each(|(_, value)| all_texts(value, into)),
        _ => {}
    }
}

fn of_template(template: &Template, used: &mut BTreeSet<String>) {
    let holes = template.holes().filter(|hole| hole.root() == "context");
    for hole in holes {
        used.extend((2..=hole.path.len()).map(|end| hole.path[1..end].join(".")));
    }
}

fn of_param(param: &Param, used: &mut BTreeSet<String>) {
    match param {
        Param::Text(template) => of_template(template, used),
        Param::List(items) => items.iter().for_each(|item| of_param(item, used)),
        Param::Map(pairs) => pairs.iter().for_each(|(_, value)| of_param(value, used)),
        Param::Fixed(_) => {}
    }
}

fn of_spell(text: &str, used: &mut BTreeSet<String>) {
    let is_name = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-');
    for action in text.split("{{").skip(1) {
        let action = action.split("}}").next().unwrap_or_default();
        for path in action.split('.').skip(1) {
            let end = path.find(|c| !is_name(c)).unwrap_or(path.len());
            used.insert(path[..end].replace('-', "_"));
            used.insert(path[..end].to_owned());
        }
    }
    used.remove("");
}
