//! Settings: the built-in file, overridden key by key by files of the user and the workspace.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::base::digest::sha256;
use crate::disk::fs;
use crate::workflow::plan::{Checks, Provider};
use crate::workflow::sandbox::Sandbox;
use crate::workflow::settings::{AgentLayer, NotifyLayer, Occasion, ProviderLayer, QueueLayer};
use crate::workflow::{ConfigLayer, Configured, Problem, read_config};
use crate::worktree::REMOTE_TIMEOUT;
use crate::yaml::problem::nearest;

const BUILT_IN: &str = include_str!("../config/orchestrate.yaml");
const AGENTS: [&str; 3] = ["architect", "engineer", "qa"];

/// A settings file as it was read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Layer {
    pub file: String,
    pub sha256: String,
    pub text: String,
}

/// Replaces the webhook address in the settings that a run keeps.
const NO_WEBHOOK: &str = "https://left-out.invalid";

impl Layer {
    /// Returns the file as a run keeps it, without the webhook address: the address may hold a
    /// secret, and the process that drives the run uses its own settings for notifications.
    fn to_be_kept(&self) -> Layer {
        let webhook = read_config(&self.text).ok().and_then(|layer| layer.notify.webhook);
        let text = match webhook.filter(|address| !address.is_empty()) {
            Some(address) => self.text.replace(&address, NO_WEBHOOK),
            None => self.text.clone(),
        };
        Layer { text, ..self.clone() }
    }
}

/// An agent, as the settings describe it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Agent {
    /// `None`: [`Config::default_provider`].
    pub provider: Option<String>,
    pub model: Option<String>,
    /// Number of tasks that a worker executes at once.
    pub concurrency: u32,
    /// A file in the workspace; or the text itself, if it has a line break.
    pub system_prompt: Option<String>,
    pub spell: Option<String>,
    /// Timeout of free tasks that do not set their own.
    pub timeout: Option<Duration>,
    /// Environment variables that its child processes get; `None`: all of them.
    pub env: Option<Vec<String>>,
    /// Agents that it may hand follow-up tasks to; `None`: every agent of the settings.
    pub next: Option<Vec<String>>,
    /// Restrictions for its child processes.
    pub sandbox: Option<Sandbox>,
}

impl Default for Agent {
    fn default() -> Self {
        Agent {
            provider: None,
            model: None,
            concurrency: 1,
            system_prompt: None,
            spell: None,
            timeout: Some(Duration::from_secs(3600)),
            env: None,
            next: None,
            sandbox: None,
        }
    }
}

impl Agent {
    fn lay_over(&mut self, layer: AgentLayer) {
        fn set<T>(to: &mut Option<T>, from: Option<T>) {
            if from.is_some() {
                *to = from;
            }
        }
        set(&mut self.provider, layer.provider);
        set(&mut self.model, layer.model);
        self.concurrency = layer.concurrency.unwrap_or(self.concurrency);
        set(&mut self.system_prompt, layer.system_prompt);
        set(&mut self.spell, layer.spell);
        self.timeout = layer.timeout.unwrap_or(self.timeout);
        set(&mut self.env, layer.env);
        set(&mut self.next, layer.next);
        set(&mut self.sandbox, layer.sandbox);
    }
}

/// Timing and limits of the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct QueueSettings {
    pub beat: Duration,
    pub lease: Duration,
    pub poll: Duration,
    pub idle_poll: Duration,
    pub settle: Duration,
    pub drain: Duration,
    pub crash_limit: u32,
    pub follow_up_depth: u32,
    pub follow_up_count: u32,
    pub task_bytes: u64,
    pub world_writable: bool,
}

impl QueueSettings {
    /// Interval at which a member writes its heartbeat and reads those of others. Two reads are
    /// never more than a third of a lease apart, which would restart the observation.
    pub(crate) fn round(&self) -> Duration {
        self.beat.min(self.lease / 6)
    }

    /// Interval at which a member checks for operator requests. It reacts within five seconds,
    /// however rare its heartbeats are.
    pub(crate) fn control_round(&self) -> Duration {
        const CONTROL: Duration = Duration::from_secs(2);
        self.round().min(CONTROL)
    }
}

impl Default for QueueSettings {
    fn default() -> Self {
        QueueSettings {
            beat: Duration::from_secs(1),
            lease: Duration::from_secs(30),
            poll: Duration::from_millis(100),
            idle_poll: Duration::from_secs(2),
            settle: Duration::from_millis(200),
            drain: Duration::from_secs(600),
            crash_limit: 3,
            follow_up_depth: 5,
            follow_up_count: 10,
            task_bytes: 1 << 20,
            world_writable: false,
        }
    }
}

impl QueueSettings {
    fn lay_over(&mut self, layer: &QueueLayer) -> Result<(), Problem> {
        self.beat = layer.beat.unwrap_or(self.beat);
        self.lease = layer.lease.unwrap_or(self.lease);
        self.poll = layer.poll.unwrap_or(self.poll);
        self.idle_poll = layer.idle_poll.unwrap_or(self.idle_poll);
        self.settle = layer.settle.unwrap_or(self.settle);
        self.drain = layer.drain.unwrap_or(self.drain);
        self.crash_limit = layer.crash_limit.unwrap_or(self.crash_limit);
        self.follow_up_depth = layer.follow_up_depth.unwrap_or(self.follow_up_depth);
        self.follow_up_count = layer.follow_up_count.unwrap_or(self.follow_up_count);
        self.task_bytes = layer.task_bytes.unwrap_or(self.task_bytes);
        self.world_writable = layer.world_writable.unwrap_or(self.world_writable);
        if self.lease >= 3 * self.beat {
            return Ok(());
        }
        let (lease, beat) = (self.lease.as_secs_f64(), self.beat.as_secs_f64());
        let problem = Problem::error(format!(
            "`lease_sec` of `queue` is {lease}, but must be at least three times `beat_sec` \
             ({beat}): one late beat must not cost a worker its tasks"
        ));
        Err(Problem { place: layer.place, ..problem })
    }
}

/// Events of a run to notify about, and the recipients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NotifySettings {
    pub on: Vec<Occasion>,
    pub command: Option<Vec<String>>,
    pub webhook: Option<String>,
    pub timeout: Duration,
}

impl Default for NotifySettings {
    fn default() -> Self {
        use Occasion::{Blocked, Completed, Failed, Paused};
        let (on, timeout) = (vec![Paused, Failed, Blocked, Completed], Duration::from_secs(10));
        NotifySettings { on, command: None, webhook: None, timeout }
    }
}

impl NotifySettings {
    /// Returns true if there is no recipient.
    pub(crate) fn is_silent(&self) -> bool {
        self.command.is_none() && self.webhook.is_none()
    }

    fn lay_over(&mut self, layer: NotifyLayer) {
        let NotifyLayer { on, command, webhook, timeout } = layer;
        self.on = on.unwrap_or_else(|| std::mem::take(&mut self.on));
        self.command = command.or(self.command.take());
        self.webhook = webhook.or(self.webhook.take());
        self.timeout = timeout.unwrap_or(self.timeout);
    }
}

/// Metrics that a coordinator writes for a monitoring system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MetricsSettings {
    /// `None`: never.
    pub every: Option<Duration>,
    /// Relative to the workspace.
    pub file: String,
}

/// Settings in force.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// The files laid over the built-in one, in order. A run keeps copies of them, so that later
    /// changes of the files do not affect it.
    pub layers: Vec<Layer>,
    /// Providers of the files alone. The first call that needs all of them adds the built-in ones.
    own_providers: BTreeMap<String, Provider>,
    all_providers: OnceLock<BTreeMap<String, Provider>>,
    agents: BTreeMap<String, Agent>,
    /// Agent that gets the agent steps of a fleet run that name no agent.
    pub default_agent: String,
    /// Agent that gets its plain commands that name no agent; `None`: the coordinator runs them.
    pub command_agent: Option<String>,
    /// The provider of prompts that name none.
    pub default_provider: String,
    /// True if an agent that does not report its result is asked once more.
    pub contract_repair: bool,
    /// Branch that the worktrees of beads start from.
    pub base_branch: Option<String>,
    /// Commands that must succeed in a merged tree.
    pub checks: Checks,
    /// Maximum wait for a worktree that another step uses.
    pub tree_wait: Duration,
    /// True if the branches of beads are pushed after each step.
    pub tree_push: bool,
    /// Timeout of each request to a remote.
    pub tree_remote: Duration,
    /// Variables that providers inherit in addition to the usual ones.
    pub env_pass: Vec<String>,
    pub queue: QueueSettings,
    pub notify: NotifySettings,
    pub metrics: MetricsSettings,
    /// True if acknowledged state survives a power cut, not only the end of processes.
    pub durable: bool,
    /// Maximum visits of a step; `None`: the default of a run.
    pub max_visits: Option<u32>,
    pub grace: Duration,
    pub input_bytes: u64,
    /// Initial and maximum backoff for a provider that does not state its own.
    pub back_off: Duration,
    pub back_off_max: Duration,
    pub silences: Silences,
}

/// A settings file that cannot be used.
#[derive(Debug)]
pub(crate) struct ConfigError {
    pub file: PathBuf,
    pub text: String,
    pub problems: Vec<Problem>,
}

impl Config {
    /// Returns the built-in settings. All except the providers are repeated here, so that startup
    /// parses no YAML; a test compares the two.
    pub(crate) fn built_in() -> Config {
        Config {
            layers: Vec::new(),
            own_providers: BTreeMap::new(),
            all_providers: OnceLock::new(),
            agents: AGENTS.map(|name| (name.to_owned(), Agent::default())).into(),
            default_agent: "engineer".into(),
            command_agent: None,
            default_provider: "claude".into(),
            contract_repair: false,
            base_branch: None,
            checks: Checks::default(),
            tree_wait: TREE_WAIT,
            tree_push: false,
            tree_remote: REMOTE_TIMEOUT,
            env_pass: Vec::new(),
            queue: QueueSettings::default(),
            notify: NotifySettings::default(),
            metrics: MetricsSettings { every: None, file: ".orchestrate/metrics.prom".into() },
            durable: true,
            max_visits: None,
            grace: Duration::from_secs(5),
            input_bytes: 64 << 20,
            back_off: Duration::from_secs(5),
            back_off_max: Duration::from_secs(900),
            silences: Silences::default(),
        }
    }

    /// Loads the built-in settings and lays the given files over them, in order. Missing optional
    /// files are skipped.
    pub(crate) fn load(
        optional: &[PathBuf],
        required: Option<&Path>,
    ) -> Result<Config, ConfigError> {
        let mut config = Config::built_in();
        let files = optional.iter().map(|path| (path.as_path(), false));
        for (path, must_exist) in files.chain(required.map(|path| (path, true))) {
            let text = match fs::read_to_string(path) {
                Ok(text) => text,
                Err(error) if !must_exist && error.kind() == std::io::ErrorKind::NotFound => {
                    continue;
                }
                Err(error) => return Err(unreadable(path, &error)),
            };
            let file = path.display().to_string();
            config.add(Layer { file, sha256: sha256(text.as_bytes()), text })?;
        }
        Ok(config)
    }

    /// Returns the settings that a run was started with.
    pub(crate) fn frozen(layers: Vec<Layer>) -> Result<Config, ConfigError> {
        let mut config = Config::built_in();
        for layer in layers {
            config.add(layer)?;
        }
        Ok(config)
    }

    /// Returns the settings files as a run keeps them.
    pub(crate) fn to_be_kept(&self) -> Vec<Layer> {
        self.layers.iter().map(Layer::to_be_kept).collect()
    }

    fn add(&mut self, layer: Layer) -> Result<(), ConfigError> {
        self.lay_over(&layer.text).map_err(|problems| ConfigError {
            file: PathBuf::from(&layer.file),
            text: layer.text.clone(),
            problems,
        })?;
        self.layers.push(layer);
        Ok(())
    }

    fn lay_over(&mut self, text: &str) -> Result<(), Vec<Problem>> {
        let layer = read_config(text)?;
        self.lay_over_agents(layer.agents)?;
        self.queue.lay_over(&layer.queue).map_err(|problem| vec![problem])?;
        let ConfigLayer { default_agent, command_agent, default_provider, durable, .. } = layer;
        self.default_agent = default_agent.unwrap_or_else(|| self.default_agent.clone());
        self.command_agent = command_agent.or_else(|| self.command_agent.take());
        let tree = layer.worktree;
        self.base_branch = tree.base_branch.or(self.base_branch.take());
        self.checks.commands = tree.checks.unwrap_or(std::mem::take(&mut self.checks.commands));
        self.checks.timeout = tree.check_timeout.unwrap_or(self.checks.timeout);
        self.tree_wait = tree.wait.unwrap_or(self.tree_wait);
        self.tree_push = tree.push.unwrap_or(self.tree_push);
        self.tree_remote = tree.remote_timeout.unwrap_or(self.tree_remote);
        self.contract_repair = layer.contract_repair.unwrap_or(self.contract_repair);
        self.default_provider = default_provider.unwrap_or_else(|| self.default_provider.clone());
        self.env_pass.extend(layer.env_pass.unwrap_or_default());
        self.durable = durable.unwrap_or(self.durable);
        self.notify.lay_over(layer.notify);
        self.metrics.every = layer.metrics_every.unwrap_or(self.metrics.every);
        self.metrics.file = layer.metrics_file.unwrap_or(std::mem::take(&mut self.metrics.file));
        self.own_providers.extend(layer.providers);
        self.change_providers(layer.changed)?;
        self.max_visits = layer.max_visits.or(self.max_visits);
        self.grace = layer.grace.unwrap_or(self.grace);
        self.input_bytes = layer.input_bytes.unwrap_or(self.input_bytes);
        self.back_off = layer.back_off.unwrap_or(self.back_off);
        self.back_off_max = layer.back_off_max.unwrap_or(self.back_off_max);
        let silences = &mut self.silences;
        silences.waiting = layer.silent.unwrap_or(silences.waiting);
        silences.at_limit = layer.silent_at_limit.unwrap_or(silences.at_limit);
        Ok(())
    }

    /// Lays the fields of providers without a `command` over the existing provider of the same
    /// name.
    fn change_providers(
        &mut self,
        layers: BTreeMap<String, ProviderLayer>,
    ) -> Result<(), Vec<Problem>> {
        // Most settings change no provider; then the built-in ones need not be parsed.
        if layers.is_empty() {
            return Ok(());
        }
        let built_in = built_in_providers();
        let mut problems = Vec::new();
        for (name, layer) in layers {
            let own = self.own_providers.remove(&name);
            let Some(mut provider) = own.or_else(|| built_in.get(&name).cloned()) else {
                let message = format!("provider `{name}` has no `command`");
                let problem = Problem::error(message).at(layer.place);
                let near = nearest(&name, built_in.keys().map(String::as_str));
                problems.push(problem.hint(match near {
                    Some(near) => format!("did you mean to change `{near}`?"),
                    None => "only a provider that is there can be changed without one".into(),
                }));
                continue;
            };
            layer.lay_over(&mut provider);
            self.own_providers.insert(name, provider);
        }
        if problems.is_empty() { Ok(()) } else { Err(problems) }
    }

    /// Lays each agent's settings over the existing ones. Rejects two agents that would share an
    /// inbox on a case-insensitive file system.
    fn lay_over_agents(
        &mut self,
        layers: BTreeMap<String, AgentLayer>,
    ) -> Result<(), Vec<Problem>> {
        let mut problems = Vec::new();
        for (name, layer) in layers {
            let alike = |other: &&String| **other != name && other.eq_ignore_ascii_case(&name);
            if let Some(other) = self.agents.keys().find(alike) {
                let message = format!("agents `{name}` and `{other}` differ in case only");
                problems.push(Problem::error(message).at(layer.place));
                continue;
            }
            self.agents.entry(name).or_default().lay_over(layer);
        }
        if problems.is_empty() { Ok(()) } else { Err(problems) }
    }

    /// Returns every agent that the settings name.
    pub(crate) fn agents(&self) -> &BTreeMap<String, Agent> {
        &self.agents
    }

    /// Returns the settings of an agent; all defaults if the settings do not name it.
    pub(crate) fn agent(&self, name: &str) -> Agent {
        self.agents.get(name).cloned().unwrap_or_default()
    }
}

fn built_in_providers() -> BTreeMap<String, Provider> {
    read_config(BUILT_IN).expect("the built-in settings are valid").providers
}

impl Configured for Config {
    fn providers(&self) -> &BTreeMap<String, Provider> {
        self.all_providers.get_or_init(|| {
            let mut all = built_in_providers();
            all.extend(self.own_providers.clone());
            for provider in all.values_mut() {
                provider.env_pass.extend(self.env_pass.iter().cloned());
            }
            all
        })
    }

    fn default_provider(&self) -> &str {
        &self.default_provider
    }

    fn agent_names(&self) -> Vec<String> {
        self.agents.keys().cloned().collect()
    }

    fn contract_repair(&self) -> bool {
        self.contract_repair
    }

    fn checks(&self) -> Checks {
        self.checks.clone()
    }
}

fn unreadable(path: &Path, error: &std::io::Error) -> ConfigError {
    let problem = Problem::error(format!("the settings cannot be read: {error}"));
    let problem = match error.kind() {
        std::io::ErrorKind::PermissionDenied => problem.hint(
            "they must be readable for who runs this; those of a user are found by HOME or \
             XDG_CONFIG_HOME, which may still be another user's",
        ),
        _ => problem,
    };
    ConfigError { file: path.to_owned(), text: String::new(), problems: vec![problem] }
}

/// Maximum silence of a provider that waits for its service inside its own process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Silences {
    /// While the cause is unknown.
    pub waiting: Duration,
    /// After it reported that it reached a limit.
    pub at_limit: Duration,
}

impl Default for Silences {
    fn default() -> Silences {
        Silences { waiting: Duration::from_secs(900), at_limit: Duration::from_secs(60) }
    }
}

/// Default maximum wait for a worktree that another execution uses.
pub(crate) const TREE_WAIT: Duration = Duration::from_secs(3600);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_files_win_key_by_key() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("c.yaml");
        std::fs::write(&file, "providers: { claude: { command: [mine] } }\n").unwrap();
        let config = Config::load(&[dir.path().join("none.yaml"), file], None).unwrap();
        assert_eq!(config.providers()["claude"].command.len(), 1);
        assert!(config.providers().contains_key("offline"));
        assert_eq!(config.grace, Duration::from_secs(5));
    }

    #[test]
    fn the_built_in_file_says_what_is_built_in() {
        let (file, config) = (read_config(BUILT_IN).unwrap(), Config::built_in());
        assert_eq!(file.max_visits, config.max_visits);
        assert_eq!(file.grace, Some(config.grace));
        assert_eq!(file.silent, Some(config.silences.waiting));
        assert_eq!(file.silent_at_limit, Some(config.silences.at_limit));
        assert_eq!(file.input_bytes, Some(config.input_bytes));
        assert_eq!(file.default_agent.as_deref(), Some(config.default_agent.as_str()));
        assert_eq!(file.default_provider.as_deref(), Some(config.default_provider.as_str()));
        assert_eq!(file.command_agent, config.command_agent);
        assert_eq!(file.durable, Some(config.durable));
        let mut laid_over = Config::built_in();
        laid_over.agents.clear();
        laid_over.lay_over(BUILT_IN).unwrap();
        assert_eq!(laid_over.agents, config.agents);
        let mut queue = QueueSettings { beat: Duration::ZERO, ..none() };
        queue.lay_over(&file.queue).unwrap();
        assert_eq!(queue, config.queue);
        let timeout = Duration::ZERO;
        let mut notify = NotifySettings { on: Vec::new(), timeout, ..config.notify.clone() };
        notify.lay_over(file.notify);
        assert_eq!(notify, config.notify);
        assert_eq!(file.metrics_every, Some(config.metrics.every));
        assert_eq!(file.metrics_file, Some(config.metrics.file));
    }

    /// Queue settings that differ from the built-in ones in every field.
    fn none() -> QueueSettings {
        QueueSettings {
            beat: Duration::ZERO,
            lease: Duration::ZERO,
            poll: Duration::ZERO,
            idle_poll: Duration::ZERO,
            settle: Duration::ZERO,
            drain: Duration::ZERO,
            crash_limit: 0,
            follow_up_depth: 0,
            follow_up_count: 0,
            task_bytes: 0,
            world_writable: true,
        }
    }

    fn laid_over(text: &str) -> Result<Config, Vec<Problem>> {
        let mut config = Config::built_in();
        config.lay_over(text).map(|()| config)
    }

    #[test]
    fn agents_are_laid_over_key_by_key_and_unknown_ones_have_defaults() {
        let mut config = laid_over(
            "agents:\n  engineer: { model: big, timeout: 15m, env: [PATH] }\n  writer:\n\
             command_agent: engineer\ndurability: process\n",
        )
        .unwrap();
        config.lay_over("agents: { engineer: { timeout: none, next: [qa] } }\n").unwrap();
        let engineer = config.agent("engineer");
        assert_eq!(engineer.model.as_deref(), Some("big"));
        assert_eq!(engineer.timeout, None);
        assert_eq!(engineer.env, Some(vec!["PATH".to_owned()]));
        assert_eq!(engineer.next, Some(vec!["qa".to_owned()]));
        assert_eq!(config.agent("nobody"), Agent::default());
        let names: Vec<_> = config.agents().keys().map(String::as_str).collect();
        assert_eq!(names, ["architect", "engineer", "qa", "writer"]);
        assert_eq!(config.command_agent.as_deref(), Some("engineer"));
        assert!(!config.durable);
    }

    #[test]
    fn settings_that_cannot_hold_are_refused_in_place() {
        for (text, line, said) in [
            ("queue:\n  beat_sec: 20\n", 2, "at least three times"),
            ("queue: { pol_ms: 5 }\n", 1, "no field `pol_ms`"),
            ("queue: { poll_ms: 0 }\n", 1, "a whole number from 1"),
            ("durability: maybe\n", 1, "must be `power` or `process`"),
            ("agents:\n  ../x: {}\n", 2, "cannot name an agent"),
            ("agents:\n  coordinator: {}\n", 2, "workflows are submitted"),
            ("agents:\n  QA: {}\n", 2, "differ in case only"),
            ("agents:\n  qa: { timeout: soon }\n", 2, "such as `15m`"),
            ("agents:\n  qa: { timeout: 15 }\n", 2, "must be a length of time"),
            ("agents:\n  qa: { env: [\"A=B\"] }\n", 2, "environment variable"),
            ("agents:\n  qa: { next: [\"a b\"] }\n", 2, "cannot name an agent"),
            ("agents:\n  qa: { modle: x }\n", 2, "no field `modle`"),
            ("agents: [qa]\n", 1, "`agents` must be a map"),
            ("default_agent: a/b\n", 1, "cannot name an agent"),
        ] {
            let problems = laid_over(text).map(|_| ()).unwrap_err();
            assert!(problems[0].message.contains(said), "{text}: {}", problems[0].message);
            assert_eq!(problems[0].place.map(|place| place.line), Some(line), "{text}");
        }
    }

    #[test]
    fn an_unknown_key_is_an_error_with_its_place() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("c.yaml");
        std::fs::write(&file, "limits:\n  grace_secs: 1\n").unwrap();
        let error = Config::load(&[], Some(&file)).unwrap_err();
        assert_eq!(error.problems[0].place.unwrap().line, 2);
        assert_eq!(error.problems[0].hint.as_deref(), Some("did you mean `grace_sec`?"));
    }
}
