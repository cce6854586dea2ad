//! `orchestrate run`: runs a workflow from the start.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::invocation::Invocation;
use super::request_args::RequestArgs;
use super::run_options::{Driver, RunOptions};
use super::{Common, clean, coordinator, here, outcome, output, signals, submit};
use crate::actions::checkout;
use crate::base::ids::counted;
use crate::disk::fs::{self, OnVolume as _};
use crate::engine::Request;
use crate::graph;
use crate::run::create::NewRun;
use crate::run::failure::Failure;
use crate::run::load::{self, Loaded};
use crate::run::{bead_grimoire, grimoires, processed, request};
use crate::view::stderr::talk;
use crate::workflow::plan::{
    Action, Block, Dialect, Rounds, RoundsKind, ShellText, SpellSource, Step, Words,
};
use crate::workflow::{Place, Plan, Problem};
use crate::yaml::{self, without_bom};

#[derive(clap::Args, Clone, Debug)]
pub(super) struct RunArgs {
    /// The workflow file, or the name of a grimoire [default with --bead: the grimoire for it]
    #[arg(value_name = "WORKFLOW")]
    pub workflow: Option<PathBuf>,
    #[command(flatten)]
    pub context: ContextArgs,
    #[command(flatten)]
    pub request: RequestArgs,
    /// Empty the processed directory first
    #[arg(long)]
    pub clean_processed: bool,
    /// Put the processed directory into a zip file after success [default: in the run's directory]
    #[arg(long, value_name = "DEST")]
    pub archive_processed: Option<Option<PathBuf>>,
    /// Give steps to the workers of the workspace, as tasks in inbox/AGENT/
    #[arg(long)]
    pub fleet: bool,
    /// Hand the run to a coordinator and end, as `submit` does
    #[arg(long)]
    pub detach: bool,
    /// Check everything and show what would be done, but do nothing
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub options: RunOptions,
}

/// Where `${context.*}` comes from beside the workflow.
#[derive(clap::Args, Clone, Debug, Default)]
pub(super) struct ContextArgs {
    /// A variable, `${context.KEY}` in a workflow and `{{.KEY}}` in a spell; wins over the file
    #[arg(long = "context", value_name = "KEY=VALUE")]
    pub pairs: Vec<String>,
    /// A JSON or YAML file of variables; wins over the workflow's own
    #[arg(long = "context-file", value_name = "FILE")]
    pub file: Option<PathBuf>,
}

impl ContextArgs {
    /// Returns the workflow's own context, overridden by the file, overridden by the flags.
    pub(super) fn merge(&self, plan: &Plan) -> Result<Map<String, Value>, Failure> {
        self.over(plan.context().clone())
    }

    /// Refuses variables that this workflow cannot read.
    pub(super) fn check(&self, plan: &Plan) -> Result<(), Failure> {
        let given = self.file.is_some() || !self.pairs.is_empty();
        let mut spells = false;
        plan.root().walk(&mut |step| spells |= step.casts());
        if !given || plan.dialect() != Dialect::Nodes || spells {
            return Ok(());
        }
        let message = "`--context` and `--context-file` do nothing for a workflow of `nodes:` \
                       without spells";
        Err(Failure::invalid(message)
            .hint("`--message TEXT` is `$ARGUMENTS` there, `--issue-context-file` is `$CONTEXT`"))
    }

    /// Warns about variables that the workflow does not read.
    pub(super) fn tell_unused(
        &self,
        invocation: &Invocation,
        loaded: &Loaded,
    ) -> Result<(), Failure> {
        if self.file.is_none() && self.pairs.is_empty() {
            return Ok(());
        }
        let file = self.file.as_deref().map(read_context).transpose()?.unwrap_or_default();
        let file: Vec<&str> = file.keys().map(String::as_str).collect();
        let flags = self.pairs.iter().filter_map(|pair| Some(pair.split_once('=')?.0));
        here::tell_unused(invocation, loaded, &flags.collect::<Vec<_>>(), &file);
        Ok(())
    }

    /// Returns `context`, overridden by the file, overridden by the flags.
    pub(super) fn over(
        &self,
        mut context: Map<String, Value>,
    ) -> Result<Map<String, Value>, Failure> {
        if let Some(path) = &self.file {
            context.extend(read_context(path)?);
        }
        for pair in &self.pairs {
            let (key, value) =
                pair.split_once('=').filter(|(key, _)| !key.is_empty()).ok_or_else(|| {
                    Failure::invalid(format!("`--context {pair}` must have the form KEY=VALUE"))
                })?;
            context.insert(key.to_owned(), value.into());
        }
        Ok(context)
    }
}

fn read_context(path: &Path) -> Result<Map<String, Value>, Failure> {
    let name = path.display();
    let text = fs::read_to_string(path).map_err(|error| {
        Failure::invalid(format!("cannot read the context file `{name}`: {error}"))
    })?;
    let is_json = path.extension().is_some_and(|ending| ending == "json");
    match serde_json::from_str(without_bom(&text)) {
        Ok(Value::Object(map)) => return Ok(map),
        Err(error) if is_json => {
            let place = Place { line: error.line().max(1), column: error.column().max(1), len: 1 };
            let problem = Problem::error(format!("this is no JSON: {error}")).at(place);
            return Err(Failure::in_text(vec![problem], &name.to_string(), without_bom(&text)));
        }
        _ => {}
    }
    // Text that is not JSON may be YAML, whose parser also reports places.
    let node = yaml::parse(&text)
        .map_err(|problem| Failure::in_text(vec![problem], &name.to_string(), &text))?;
    match node.to_json() {
        Value::Object(map) => Ok(map),
        _ => {
            let message = format!("the context file `{name}` must hold a map, not {}", node.kind());
            Err(Failure::invalid(message))
        }
    }
}

pub(super) fn main(args: &RunArgs, common: &Common) -> Result<u8, Failure> {
    if args.detach {
        return submit::detach(args, common);
    }
    let invocation = Invocation::read(common)?;
    let days = clean::days_kept(&invocation)?;
    let Some(ready) = prepare(&invocation, args)? else { return Ok(0) };
    let policy = args.options.new_policy(&invocation);
    let Ready { loaded, context, archive, request } = ready;
    let new = NewRun { archive, request, ..NewRun::whole(&loaded, context, policy) };
    let signals = signals::listen()?;
    let (code, run) = if args.fleet {
        coordinator::run(&invocation, new, &args.options, &signals)?
    } else {
        let owned = checkout::create_run(&invocation, new)?;
        invocation.note(format!("run {} of {}", owned.run.id, loaded.file));
        outcome::drive(&invocation, owned, &args.options, &signals, None)?
    };
    clean::keep_days(&invocation, days, &run.id);
    Ok(code)
}

/// A checked workflow and its inputs, ready to run.
pub(super) struct Ready {
    pub loaded: Loaded,
    pub context: Map<String, Value>,
    /// Path of the archive. Empty for the default path, in the run's directory.
    pub archive: Option<String>,
    pub request: Option<Box<Request>>,
}

/// Checks everything about a run before it is created. Returns `None` for a dry run.
pub(super) fn prepare(invocation: &Invocation, args: &RunArgs) -> Result<Option<Ready>, Failure> {
    let (workflow, archive) = sort_out(invocation, args)?;
    if args.clean_processed && (args.fleet || args.detach) {
        // Other runs may be waiting for results in that directory.
        let message = "`--clean-processed` cannot be used with a fleet";
        return Err(Failure::invalid(message).hint("`orchestrate clean` removes what is old"));
    }
    let loaded = load::load(invocation, &workflow)?;
    tell_warnings(invocation, &loaded);
    let driver = if args.detach { Driver::Coordinator } else { Driver::here(args.fleet) };
    args.options.check(&loaded.plan, driver)?;
    args.context.check(&loaded.plan)?;
    let context = args.context.merge(&loaded.plan)?;
    args.context.tell_unused(invocation, &loaded)?;
    let request = args.request.input(&loaded.plan)?.resolve(invocation, &loaded.plan, &loaded)?;
    let policy = args.options.new_policy(invocation);
    let new = NewRun { request, ..NewRun::whole(&loaded, context, policy) };
    new.check()?;
    let NewRun { context, request, .. } = new;
    let processed = processed::Processed::of(invocation, &loaded.plan);
    if args.clean_processed {
        processed.check()?;
    }
    if let Some(destination) = &archive {
        processed.check_archive(destination)?;
    }
    if args.dry_run {
        here::tell_missing(invocation, &loaded);
        let fleet = args.fleet || args.detach;
        let mut also = Vec::new();
        if args.clean_processed {
            also.push(processed.would_clean());
        }
        if let Some(destination) = &archive {
            also.push(processed.would_archive(destination));
        }
        return dry_run(invocation, &loaded, fleet, &also).map(|_| None);
    }
    if args.clean_processed {
        processed.clean()?;
    }
    let archive = archive.map(|path| path.to_string_lossy().into_owned());
    Ok(Some(Ready { loaded, context, archive, request }))
}

/// Returns the workflow and the archive path. In `--archive-processed wf.yaml`, clap parses the
/// workflow as the value of the flag; this function corrects that.
fn sort_out(
    invocation: &Invocation,
    args: &RunArgs,
) -> Result<(PathBuf, Option<PathBuf>), Failure> {
    let archive = args.archive_processed.clone();
    match (&args.workflow, &archive) {
        (Some(workflow), _) => Ok((workflow.clone(), archive.map(Option::unwrap_or_default))),
        (None, Some(Some(taken)))
            if taken.extension().is_some_and(|ending| ending == "yaml" || ending == "yml") =>
        {
            Ok((taken.clone(), Some(PathBuf::new())))
        }
        _ if args.request.bead.is_some() => {
            let bead = args.request.bead.as_deref().unwrap_or_default();
            let name =
                bead_grimoire::grimoire_for(invocation, &request::read_bead(invocation, bead)?)?;
            invocation.note(format!("{} for bead `{bead}`", grimoires::shown(&name)));
            Ok((PathBuf::from(name), archive.map(Option::unwrap_or_default)))
        }
        _ => {
            let verb = if args.detach { "submit" } else { "run" };
            let usual = Path::new("workflow.yaml");
            let hint = match usual.is_present_file() {
                true => format!("`orchestrate {verb} {}`", usual.display()),
                false => format!("`orchestrate {verb} WORKFLOW` names a file or a grimoire"),
            };
            Err(Failure::invalid("no workflow was named").hint(hint))
        }
    }
}

pub(super) fn tell_warnings(invocation: &Invocation, loaded: &Loaded) {
    if invocation.common.quiet {
        return;
    }
    for problem in &loaded.warnings {
        talk(problem.show(&loaded.file, &loaded.text));
    }
}

fn dry_run(
    invocation: &Invocation,
    loaded: &Loaded,
    fleet: bool,
    also: &[String],
) -> Result<u8, Failure> {
    let outline = Outline { invocation, fleet };
    if invocation.common.json {
        let steps = outline.json(loaded.plan.root());
        output::put_json("dry-run/v1", serde_json::json!({ "steps": steps, "also": also }))?;
        return Ok(0);
    }
    let mut text = format!("{} is valid; it would run:\n", loaded.file);
    outline.text(loaded.plan.root(), 1, &mut text);
    also.iter().for_each(|what| text.push_str(&format!("it would also {what}\n")));
    output::put(&text)?;
    Ok(0)
}

/// Describes the steps that would be executed.
struct Outline<'a> {
    invocation: &'a Invocation,
    fleet: bool,
}

impl Outline<'_> {
    fn text(&self, block: &Block, depth: usize, into: &mut String) {
        for (index, step) in block.steps.iter().enumerate() {
            let (indent, number) = ("  ".repeat(depth), index + 1);
            let mut words = kind(&step.action);
            words.extend(self.agent(step).map(|agent| format!(", by agent {agent}")));
            words.extend(step.when.as_ref().map(|when| format!(", if {}", graph::condition(when))));
            words.extend(self.missing(step).map(|file| format!("; `{file}` is not there yet")));
            *into += &format!("{indent}{number}. {}: {words}\n", step.name);
            if let Some(inner) = repeated(step) {
                self.text(inner, depth + 1, into);
            }
        }
    }

    fn json(&self, block: &Block) -> Vec<Value> {
        let step = |step: &Step| {
            let mut value = serde_json::json!({ "name": step.name, "does": kind(&step.action) });
            let when = step.when.as_ref().map(graph::condition);
            let known =
                [("agent", self.agent(step)), ("when", when), ("missing", self.missing(step))];
            for (key, word) in known {
                if let Some(word) = word {
                    value[key] = word.into();
                }
            }
            if let Some(inner) = repeated(step) {
                value["steps"] = self.json(inner).into();
            }
            value
        };
        block.steps.iter().map(step).collect()
    }

    /// Returns the agent that gets the step in a fleet, or `None` if the coordinator executes it.
    fn agent(&self, step: &Step) -> Option<String> {
        let config = &self.invocation.config;
        let default = match &step.action {
            Action::Ask { .. } | Action::Prompt(_) => Some(&config.default_agent),
            Action::Exec { .. } | Action::Shell { .. } | Action::Script(_) => {
                config.command_agent.as_ref()
            }
            _ => return None,
        };
        step.agent.as_ref().or(default).filter(|_| self.fleet).cloned()
    }

    /// Returns the step's prompt file if it is missing and its name has no variables. An earlier
    /// step may create it.
    fn missing(&self, step: &Step) -> Option<String> {
        let file = step.input_file.as_ref()?.literal()?;
        (!self.invocation.workspace.join(file).is_present()).then(|| file.to_owned())
    }
}

/// Returns the steps that the author nested in this step.
fn repeated(step: &Step) -> Option<&Block> {
    match &step.action {
        Action::Each(each) => Some(&each.block),
        Action::Rounds(rounds) if matches!(rounds.kind, RoundsKind::Steps { .. }) => {
            Some(&rounds.block)
        }
        _ => None,
    }
}

fn kind(action: &Action) -> String {
    match action {
        Action::Exec { argv } => {
            let program = argv.first().map(|program| program.with_holes_as("…"));
            format!("command {}", program.unwrap_or_default())
        }
        Action::Ask { provider, .. } => format!("provider {provider}"),
        Action::Wait(wait) => format!("wait for {}", wait.glob.with_holes_as("…")),
        Action::Each(_) => "for each item".into(),
        Action::Prompt(prompt) => match &prompt.words {
            Words::Inline(_) => format!("prompt for {}", prompt.provider),
            Words::Command(command) => {
                format!("command file {} for {}", command.name, prompt.provider)
            }
            Words::Spell(spell) => match &spell.source {
                SpellSource::Named(name) => format!("spell {name} for {}", prompt.provider),
                SpellSource::Inline(_) => format!("inline spell for {}", prompt.provider),
            },
        },
        Action::Shell { script: ShellText::Node(_) } => "bash".into(),
        Action::Shell { script: ShellText::Spell(_) } => "shell script".into(),
        Action::Script(_) => "script".into(),
        Action::Rounds(Rounds {
            kind: RoundsKind::Loop | RoundsKind::Steps { .. }, most, ..
        }) => {
            format!("loop of at most {}", counted(*most as usize, "round"))
        }
        Action::Merge { review, checks } => {
            let review = if *review { " after review" } else { "" };
            let commands = &checks.commands;
            let checks = commands.iter().map(|command| format!("`{command}`"));
            let checks = checks.collect::<Vec<_>>().join(", ");
            let checks = if checks.is_empty() { checks } else { format!(", checked by {checks}") };
            format!("merge{review}{checks}")
        }
        Action::Rounds(_) | Action::Gate(_) => "approval".into(),
        Action::Cancel { .. } => "cancel".into(),
    }
}
