//! The names that exist in a workspace, for completion.

use clap::Arg;

use super::{Beside, Spot, Words};
use crate::attempt::documents::COORDINATOR;
use crate::attempt::prompt::spell;
use crate::base::ids::shown;
use crate::cli::invocation::Invocation;
use crate::cli::{Common, help, worktree};
use crate::disk::fs;
use crate::run::{grimoires, load, part_files};
use crate::view::{Board, Gate, StepView, one_line};
use crate::workflow::Configured;
use crate::workflow::plan::{Action, PartKind};
use crate::workflow::schema::render::Topic;
use crate::worktree::Trees;

/// Maximum number of completions: newest runs, and next tasks of each inbox.
const RUNS: usize = 30;
const TASKS: usize = 30;
/// Maximum number of steps inside loops.
const STEPS: usize = 200;

/// Returns the completions for an argument, which its value name (for example `RUN`) selects.
pub(super) fn of(arg: &Arg, spot: &Spot, common: &Common) -> (Beside, Words) {
    let possible = arg.get_possible_values();
    if !possible.is_empty() {
        let shown = possible.iter().filter(|value| !value.is_hide_set());
        let about = |help: Option<&_>| help.map(ToString::to_string).unwrap_or_default();
        let word = |value: &clap::builder::PossibleValue| {
            (value.get_name().to_owned(), about(value.get_help()))
        };
        return (Beside::Nothing, shown.map(word).collect());
    }
    let name = arg.get_value_names().and_then(|names| names.first());
    let name = name.map(|name| name.as_str()).unwrap_or_default();
    let beside = match name {
        "FILE" | "PATH" | "DEST" | "FILE|ID" | "ID|FILE" | "SPELL|FILE" | "WORKFLOW"
        | "WORKFLOW|RUN" => Beside::Files,
        "DIR" => Beside::Dirs,
        _ => Beside::Nothing,
    };
    let words = Names::look(spot, common).and_then(|names| names.called(name, spot));
    (beside, words.unwrap_or_default())
}

struct Names {
    invocation: Invocation,
    board: Board,
}

impl Names {
    fn look(spot: &Spot, common: &Common) -> Option<Names> {
        let given = |id: &str| spot.value(id).map(Into::into);
        let (state_dir, config) = (given("state_dir"), given("config"));
        let common = Common { state_dir, config, quiet: true, ..common.clone() };
        let (invocation, _) = Invocation::read_leniently(&common).ok()?;
        let board = Board::scan(&invocation, invocation.queue_if_any().ok()?).ok()?;
        Some(Names { invocation, board })
    }

    /// Returns the completions for a value name, or `None` if the name is unknown or the values
    /// cannot be read.
    fn called(&self, name: &str, spot: &Spot) -> Option<Words> {
        let verb = spot.path.first().copied().unwrap_or_default();
        Some(match name {
            "RUN" if matches!(verb, "approve" | "reject") => self.askers(),
            "RUN" | "WORKFLOW|RUN" => self.runs(),
            "RUN|TASK" => [self.runs(), self.tasks()].concat(),
            "TASK" => self.tasks(),
            "WORKFLOW" => self.grimoires(),
            "STEP" if verb == "run-step" => self.steps_of_file(spot.value("workflow")?)?,
            "NODE" => self.nodes(spot.value("run")?)?,
            "STEP" => self.steps(spot.value("target")?)?,
            // Only coordinators serve the coordinator's inbox.
            "AGENT" if matches!(verb, "worker" | "enqueue") => {
                let agents = self.agents().into_iter();
                agents.filter(|(agent, _)| agent != COORDINATOR).collect()
            }
            "AGENT" | "AGENT,..." => self.agents(),
            "WORKER|AGENT" => [self.agents(), self.workers()].concat(),
            "PROVIDER" => self.providers(),
            "COMMAND" if verb == "command" => self.commands(),
            "SPELL|FILE" => self.spells(),
            "ID" | "ID|FILE" | "FILE|ID" => self.worktrees()?,
            "TOPIC" if verb == "schema" => {
                Topic::ALL.iter().map(|(name, _)| ((*name).to_owned(), String::new())).collect()
            }
            "TOPIC" => help::topics(),
            _ => return None,
        })
    }

    fn runs(&self) -> Words {
        let ids = self.board.run_ids();
        let latest = ids.first().map(|_| ("latest".to_owned(), "the newest run".to_owned()));
        let runs = ids.iter().take(RUNS).map(|id| {
            let run = self.board.run(id);
            (id.to_string(), format!("{}, {}", run.state.word(), run.workflow_file))
        });
        latest.into_iter().chain(runs).collect()
    }

    /// Returns the runs that wait for an answer.
    fn askers(&self) -> Words {
        let gates = self.board.gates();
        let word = |gate: &Gate| {
            (gate.run_id.to_string(), format!("{}: {}", gate.node, one_line(&gate.message)))
        };
        gates.iter().map(word).collect()
    }

    fn nodes(&self, run: &str) -> Option<Words> {
        let (id, _) = self.invocation.find_run(run).ok()?;
        let gates = self.board.gates_of_run(&id).ok()?;
        let word = |gate: &Gate| (gate.node.clone(), one_line(&gate.message));
        Some(gates.iter().map(word).collect())
    }

    fn steps(&self, run: &str) -> Option<Words> {
        let (id, _) = self.invocation.find_run(run).ok()?;
        let detail = self.board.detail(&id).ok()?;
        let mut steps = detail.steps;
        // Include steps of finished iterations: their output can be read.
        let (plan, run) = self.board.open(&id).ok()?;
        let within = run.slots().into_iter().filter(|(at, slot)| {
            let over = !at.loops.is_empty() && !slot.attempts.is_none();
            over && !matches!(at.step_of(&plan).action, Action::Gate(_))
        });
        let walk = self.board.walk(&plan, &run, detail.run.state);
        for (at, slot) in within.take(STEPS) {
            let view = walk.step(&at, slot);
            if !steps.iter().any(|step| step.step == view.step) {
                steps.push(view);
            }
        }
        let word = |s: &StepView| {
            let about = [Some(s.state.word()), s.item.as_deref()];
            let about: Vec<_> = about.into_iter().flatten().collect();
            (shown(&s.step).into_owned(), about.join(", "))
        };
        Some(steps.iter().map(word).collect())
    }

    fn steps_of_file(&self, file: &str) -> Option<Words> {
        let loaded = load::load(&self.invocation, file.as_ref()).ok()?;
        let steps = loaded.plan.root().steps.iter();
        Some(
            steps.map(|step| (step.name.clone(), step.agent.clone().unwrap_or_default())).collect(),
        )
    }

    fn tasks(&self) -> Words {
        let inboxes = self.board.inboxes().unwrap_or_default().into_iter();
        let tasks = inboxes.flat_map(|inbox| {
            self.board.tasks(&inbox.agent, TASKS).map(|(tasks, _)| tasks).unwrap_or_default()
        });
        tasks.map(|t| (t.task, format!("{} {}, {}", t.agent, t.place.word(), t.label))).collect()
    }

    fn agents(&self) -> Words {
        let known = self.invocation.config.agents().iter();
        let mut agents: Words = known
            .map(|(name, agent)| (name.clone(), agent.provider.clone().unwrap_or_default()))
            .collect();
        let queue = self.invocation.queue_if_any().ok().flatten();
        for name in queue.and_then(|queue| queue.agents().ok()).unwrap_or_default() {
            if !agents.iter().any(|(known, _)| *known == name) {
                agents.push((name, String::new()));
            }
        }
        agents
    }

    fn workers(&self) -> Words {
        let workers = self.board.members.views();
        workers
            .map(|member| (member.worker, format!("{} on {}", member.agent, member.host)))
            .collect()
    }

    fn providers(&self) -> Words {
        let all = self.invocation.config.providers().iter();
        all.map(|(name, provider)| (name.clone(), provider.adapter.name().to_owned())).collect()
    }

    fn commands(&self) -> Words {
        let all = part_files::library(&self.invocation, None).all(PartKind::Command).into_iter();
        all.map(|(name, file)| (name, file.display().to_string())).collect()
    }

    fn grimoires(&self) -> Words {
        let own = self.stems(&[grimoires::GRIMOIRES], &["yaml", "yml"]);
        let built_in = grimoires::built_in().map(|name| (name.to_owned(), "built in".to_owned()));
        own.into_iter().chain(built_in).collect()
    }

    fn spells(&self) -> Words {
        let own = self.stems(&spell::SPELLS, &["md"]);
        let built_in = spell::built_in().map(|name| (name.to_owned(), "built in".to_owned()));
        own.into_iter().chain(built_in).collect()
    }

    /// Returns the files of some directories of the workspace, without their extensions.
    fn stems(&self, places: &[&str], endings: &[&str]) -> Words {
        let entries = places.iter().flat_map(|place| {
            let dir = self.invocation.workspace.join(place);
            let entries = fs::read_dir(dir).into_iter().flatten().flatten();
            entries.map(move |entry| (entry.path(), (*place).to_owned()))
        });
        let named = entries.filter_map(|(path, place)| {
            let ending = path.extension()?.to_str()?;
            endings.contains(&ending).then_some(())?;
            Some((path.file_stem()?.to_str()?.to_owned(), place))
        });
        let mut all: Words = named.collect();
        all.sort();
        all
    }

    fn worktrees(&self) -> Option<Words> {
        let views = Trees::open(&self.invocation.workspace).ok()?.views().ok()?.into_iter();
        Some(views.map(|view| (view.id.to_string(), worktree::state(&view).to_owned())).collect())
    }
}

#[cfg(test)]
mod tests {
    use clap::{Command, CommandFactory as _};

    use crate::cli::Cli;

    /// What arguments are called that no name of the workspace stands for.
    const OTHERS: [&str; 24] = [
        "ADDRESS:PORT",
        "AGE",
        "ARGS",
        "ARGV",
        "BRANCH",
        "COMMAND",
        "DIGEST",
        "FORM",
        "FORMAT",
        "HOST",
        "JSON",
        "KEY=VALUE",
        "LEVEL",
        "MODEL",
        "MS",
        "N",
        "NAME",
        "SECONDS",
        "SHA256",
        "SHELL",
        "TEXT",
        "TIME",
        "WHEN",
        "WORD",
    ];
    /// Those that names stand for.
    const NAMED: [&str; 20] = [
        "AGENT",
        "AGENT,...",
        "COMMAND",
        "DEST",
        "DIR",
        "FILE",
        "FILE|ID",
        "ID",
        "ID|FILE",
        "NODE",
        "PATH",
        "PROVIDER",
        "RUN",
        "RUN|TASK",
        "SPELL|FILE",
        "STEP",
        "TASK",
        "TOPIC",
        "WORKER|AGENT",
        "WORKFLOW|RUN",
    ];

    fn look(command: &Command, unknown: &mut Vec<String>) {
        for arg in command.get_arguments().filter(|arg| arg.get_action().takes_values()) {
            for name in arg.get_value_names().unwrap_or_default() {
                let known = OTHERS.contains(&name.as_str()) || NAMED.contains(&name.as_str());
                let own = name == "WORKFLOW" || !arg.get_possible_values().is_empty();
                if !known && !own {
                    unknown.push(format!("{} of {}", name, command.get_name()));
                }
            }
        }
        let verbs = command.get_subcommands().filter(|verb| !verb.is_hide_set());
        verbs.for_each(|verb| look(verb, unknown));
    }

    #[test]
    fn what_an_argument_is_called_says_what_completes_it() {
        let mut root = Cli::command();
        root.build();
        let mut unknown = Vec::new();
        look(&root, &mut unknown);
        assert!(unknown.is_empty(), "are there names for {unknown:?}?");
    }
}
