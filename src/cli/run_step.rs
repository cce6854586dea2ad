//! `orchestrate run-step`: runs one step of a workflow.

use std::path::PathBuf;

use super::common::{self, Driver, NewRun, RunOptions, Surroundings};
use super::request::RequestArgs;
use super::run::ContextArgs;
use super::{Common, Failure, signals};
use crate::base::ids::shown;
use crate::yaml::problem::nearest;

#[derive(clap::Args, Clone, Debug)]
pub(super) struct RunStepArgs {
    /// The step, by its name at the top level of the workflow
    #[arg(value_name = "STEP")]
    pub step: String,
    /// The workflow file
    #[arg(long, value_name = "WORKFLOW")]
    pub workflow: PathBuf,
    #[command(flatten)]
    pub context: ContextArgs,
    #[command(flatten)]
    pub options: RunOptions,
}

pub(super) fn main(args: &RunStepArgs, common: &Common) -> Result<u8, Failure> {
    let around = Surroundings::look(common)?;
    let loaded = common::load(&around, &args.workflow)?;
    args.options.check(&loaded.plan, Driver::Alone)?;
    args.context.check(&loaded.plan)?;
    let context = args.context.merge(&loaded.plan)?;
    args.context.tell_unused(&around, &loaded)?;
    let step = shown(&args.step);
    let plan = loaded.plan.clone().only(&step).ok_or_else(|| {
        let message = format!("`{}` has no {} `{step}`", loaded.file, loaded.plan.unit());
        let names = loaded.plan.root().steps.iter().map(|step| step.name.as_str());
        match nearest(&step, names) {
            Some(near) => Failure::new(2, message).hint(format!("did you mean `{near}`?")),
            None => Failure::new(2, message),
        }
    })?;
    let policy = args.options.new_policy(&around);
    let only_step = Some(step.clone().into_owned());
    let request = RequestArgs::default().of(&around, &plan, &loaded)?;
    let new = NewRun { plan, only_step, request, ..NewRun::of(&loaded, context, policy) };
    let signals = signals::listen()?;
    let owned = common::create(&around, new)?;
    let unit = loaded.plan.unit();
    around.say(format!("run {} of {unit} {step} of {}", owned.run.id, loaded.file));
    let (code, _) = common::drive(&around, owned, &args.options, &signals, None)?;
    Ok(code)
}
