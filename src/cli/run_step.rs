//! `orchestrate run-step`: runs one step of a workflow.

use std::path::PathBuf;

use super::invocation::Invocation;
use super::run::ContextArgs;
use super::run_options::{Driver, RunOptions};
use super::{Common, outcome, signals};
use crate::actions::checkout;
use crate::base::ids::shown;
use crate::run::create::NewRun;
use crate::run::failure::Failure;
use crate::run::load;
use crate::run::request::RequestInput;
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
    let invocation = Invocation::read(common)?;
    let loaded = load::load(&invocation, &args.workflow)?;
    args.options.check(&loaded.plan, Driver::Alone)?;
    args.context.check(&loaded.plan)?;
    let context = args.context.merge(&loaded.plan)?;
    args.context.tell_unused(&invocation, &loaded)?;
    let step = shown(&args.step);
    let plan = loaded.plan.clone().only(&step).ok_or_else(|| {
        let message = format!("`{}` has no {} `{step}`", loaded.file, loaded.plan.unit());
        let names = loaded.plan.root().steps.iter().map(|step| step.name.as_str());
        match nearest(&step, names) {
            Some(near) => Failure::invalid(message).hint(format!("did you mean `{near}`?")),
            None => Failure::invalid(message),
        }
    })?;
    let policy = args.options.new_policy(&invocation);
    let only_step = Some(step.clone().into_owned());
    let request = RequestInput::default().resolve(&invocation, &plan, &loaded)?;
    let new = NewRun { plan, only_step, request, ..NewRun::whole(&loaded, context, policy) };
    let signals = signals::listen()?;
    let owned = checkout::create_run(&invocation, new)?;
    let unit = loaded.plan.unit();
    invocation.note(format!("run {} of {unit} {step} of {}", owned.run.id, loaded.file));
    let (code, _) = outcome::drive(&invocation, owned, &args.options, &signals, None)?;
    Ok(code)
}
