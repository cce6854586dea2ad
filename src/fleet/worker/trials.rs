//! Tests untried versions of provider programs. If a server on this machine stands in for the
//! provider's service, a worker tests each such version once, before it claims tasks.

use std::path::PathBuf;

use super::Shop;
use super::limits::target_in;
use crate::agent::MachineFault;
use crate::attempt::parking::told_in_short;
use crate::attempt::provider_check::{self, Known, Program};
use crate::base::process::Process;
use crate::disk;
use crate::disk::fs;
use crate::exec::Stop;
use crate::workflow::Configured;
use crate::workflow::plan::Provider;

/// Directory that records which version of a provider was tested on each machine.
const TRIED: &str = ".orchestrate/tried";

/// Tests the configured providers whose version was never tried, and suspends those that fail.
pub(super) fn test_new_versions(shop: &Shop, stop: &Stop) {
    for (name, provider) in shop.setup.config.providers() {
        let Some(server) = provider_check::own_server(provider.adapter, &shop.setup.environment)
        else {
            continue;
        };
        if let Some(version) = new_version(shop, name, provider, stop) {
            test(shop, name, provider, &server, &version, stop);
        }
    }
}

/// Returns the version of a provider's program, or `None` if it was tried before or is unknown.
fn new_version(shop: &Shop, name: &str, provider: &Provider, stop: &Stop) -> Option<String> {
    let root = shop.setup.workspace.root();
    let Program::Found(file) = provider_check::find(provider, &shop.setup.environment, root) else {
        return None;
    };
    provider.adapter.tried()?;
    let version = provider_check::version(&file, root, stop).ok()?;
    let known = matches!(Known::of(provider.adapter, &version), Some(Known::Tried { .. }));
    let tested = disk::machine().read(&note(shop, name));
    let tested = tested.is_ok_and(|tested| tested.trim_ascii() == version.as_bytes());
    (!known && !tested).then_some(version)
}

fn test(shop: &Shop, name: &str, provider: &Provider, server: &str, version: &str, stop: &Stop) {
    let setup = &shop.setup;
    let tested = provider_check::in_scratch(&setup.environment, |dir| {
        provider_check::try_out(name, &setup.config, &setup.environment, server, dir, stop)
    });
    let judged = match tested {
        Ok(Some(record)) => provider_check::judge(provider.adapter, &record),
        // The test was stopped, or the provider cannot run without a step.
        Ok(None) | Err(_) => return,
    };
    match judged {
        Ok(_) => {
            shop.audience.note(&format!("tested provider `{name}`, version {version}: it answers"));
            keep(shop, name, version);
        }
        Err(problem) => {
            let Some(target) = target_in(name, &setup.config) else { return };
            let reason = format!("version {version} failed its test: {problem}");
            let note = shop.parking.suspend(&target, MachineFault::Test, &reason);
            shop.audience.note(&note.map_or(reason, |note| told_in_short(&note)));
        }
    }
}

fn note(shop: &Shop, name: &str) -> PathBuf {
    let host = Process::this().host;
    shop.setup.workspace.root().join(TRIED).join(format!("{name}@{}", host.replace('/', "_")))
}

fn keep(shop: &Shop, name: &str, version: &str) {
    let path = note(shop, name);
    let dir = path.parent().unwrap_or(&path);
    let kept = fs::create_dir_all(dir).and_then(|()| fs::write(&path, format!("{version}\n")));
    if let Err(error) = kept {
        tracing::warn!("cannot note that version {version} of `{name}` was tested: {error}");
    }
}
