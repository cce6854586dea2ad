//! Converts a claimed task to executable work: a step of a run, or a free task.

use std::ffi::OsString;
use std::path::PathBuf;

use serde_json::Value;

use super::{Setup, Shop};
use crate::attempt::credentials;
use crate::attempt::documents::{self, Asked, StepTask};
use crate::attempt::exec_env::{self, Site, Turns};
use crate::attempt::work::Work;
use crate::exec::Mask;
use crate::fleet::systemd;
use crate::free_task::parse::FreeTask;
use crate::queue::Claim;

/// A task that is ready for execution.
pub(super) struct Ready {
    pub(super) site: Site,
    pub(super) work: Work,
    pub(super) free: Option<FreeTask>,
}

impl Ready {
    pub(super) fn logs(&self) -> [PathBuf; 2] {
        ["stdout", "stderr"].map(|ending| self.site.log(&self.work.step, ending))
    }
}

impl Shop {
    /// Converts a claimed task to executable work. The error is one sentence.
    pub(super) fn prepare(&self, claim: &Claim) -> Result<Ready, String> {
        let said = |key: &str| claim.task.document.get(key).and_then(Value::as_str);
        if said("id") != Some(claim.name.task.id.as_str()) || said("agent") != Some(&claim.agent) {
            return Err("it is another task than its name and its inbox say".into());
        }
        match documents::read(&claim.task.document)? {
            Asked::Step(step) => self.prepare_step(*step),
            Asked::Run(_) => Err("it is a run, which only a coordinator can drive".into()),
            Asked::Free => self.prepare_free(claim),
        }
    }

    pub(super) fn prepare_free(&self, claim: &Claim) -> Result<Ready, String> {
        let Setup { config, workspace, queue, agent, .. } = &self.setup;
        let (id, attempt) = (&claim.name.task.id, claim.name.task.attempt.of_free_task());
        let free = FreeTask::from_document(&claim.task.document)?;
        let read = |path: &str| workspace.read_text(path, config.input_bytes);
        let mut work = free.work(config, agent, &read, id, attempt)?;
        work.env_pass.extend(config.agent(agent).env.unwrap_or_default());
        let mut site = self.site(&[], Vec::new());
        site.logs = queue.layout.results().join(&claim.task.batch);
        queue.need_dir(&site.logs).map_err(|error| format!("no place for its logs: {error}"))?;
        site.about.push(("ORCHESTRATE_TASK_ID".into(), id.as_str().into()));
        Ok(Ready { site, work, free: Some(free) })
    }

    pub(super) fn prepare_step(&self, step: StepTask) -> Result<Ready, String> {
        let workspace = &self.setup.workspace;
        workspace.check(&step.run_root).map_err(|error| error.to_string())?;
        let root = workspace.root().join(&step.run_root);
        let own = step.work.env.iter().filter(|(key, _)| step.masked.contains(key));
        let own: Vec<String> = own.map(|(_, value)| value.clone()).collect();
        let mut site = self.site(&step.masked, own);
        site.logs = root.join("logs");
        site.about.extend(exec_env::about(&step.run_id, &root));
        site.debug = step.debug;
        let mut work = step.work;
        work.env_pass.extend(self.setup.config.agent(&self.setup.agent).env.unwrap_or_default());
        Ok(Ready { site, work, free: None })
    }

    pub(super) fn site(&self, masked: &[String], own: Vec<String>) -> Site {
        let Setup { workspace, config, environment, program, .. } = &self.setup;
        Site {
            workspace: workspace.clone(),
            logs: PathBuf::new(),
            about: self.given.clone(),
            environment: environment.clone(),
            hidden: self.hidden.clone(),
            debug: false,
            live: true,
            grace: config.grace,
            silences: config.silences,
            input_bytes: config.input_bytes,
            mask: self.mask(masked, own),
            program: program.clone(),
            parking: Some(self.parking.clone()),
            turns: Turns::of(config),
            sandboxes: self.sandboxes.clone(),
        }
    }

    /// Returns the mask of some secrets. Caches it unless the task has its own values for them.
    pub(super) fn mask(&self, names: &[String], own: Vec<String>) -> Mask {
        let credentials = self.setup.credentials.keys();
        let values = || {
            let values = names.iter().chain(credentials.clone());
            let values = values.filter_map(|name| self.setup.environment.get(name));
            values.map(|value| value.to_string_lossy().into_owned())
        };
        if !own.is_empty() {
            return Mask::new(values().chain(own));
        }
        let mut masks = self.masks.lock().unwrap_or_else(|poison| poison.into_inner());
        if let Some(mask) = masks.get(names) {
            return mask.clone();
        }
        let mask = Mask::new(values());
        masks.insert(names.to_vec(), mask.clone());
        mask
    }
}

/// Returns the variables that the agent's child processes must not inherit.
pub(super) fn hidden(setup: &Setup) -> Vec<String> {
    const ALWAYS: [&str; 7] = ["PATH", "HOME", "USER", "SHELL", "LANG", "TERM", "TMPDIR"];
    // Variables that systemd sets are for this service only.
    let mut hidden: Vec<String> = systemd::VARIABLES.map(str::to_owned).to_vec();
    hidden.push(credentials::VARIABLE.to_owned());
    if let Some(allowed) = setup.config.agent(&setup.agent).env {
        let hides = |name: &&String| !ALWAYS.contains(&name.as_str()) && !allowed.contains(name);
        hidden.extend(setup.environment.keys().filter(hides).cloned());
    }
    hidden
}

/// Returns the credentials that the agent's settings allow its child processes to have.
pub(super) fn given(setup: &Setup) -> Vec<(String, OsString)> {
    let allowed = setup.config.agent(&setup.agent).env;
    let gives = |name: &String| allowed.as_ref().is_none_or(|allowed| allowed.contains(name));
    let credentials = setup.credentials.iter().filter(|(name, _)| gives(name));
    credentials.map(|(name, value)| (name.clone(), value.clone())).collect()
}
