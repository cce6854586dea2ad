//! The environment policy of agents: they inherit what they need to work, and no foreign secrets.

use super::super::work::Work;
use crate::attempt::exec_env::Site;

/// Variables that every agent inherits; a trailing `*` matches any suffix.
const USUAL: [&str; 32] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LANGUAGE",
    "LC_*",
    "TERM",
    "COLORTERM",
    "TZ",
    "TMPDIR",
    "XDG_*",
    "ANTHROPIC_*",
    "CLAUDE_*",
    "OPENAI_*",
    "CODEX_*",
    "GEMINI_*",
    "GOOGLE_*",
    "OPENCODE_*",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "no_proxy",
    "SSL_*",
    "NODE_EXTRA_CA_CERTS",
    "GIT_*",
    "ORCHESTRATE_*",
];

/// Returns the variables that work does not inherit, in addition to those that no work inherits.
pub(crate) fn kept_back<'a>(site: &'a Site, work: &Work) -> Vec<&'a str> {
    if !work.adapter.is_stream() {
        return Vec::new();
    }
    let names = site.environment.keys().map(String::as_str);
    names.filter(|name| !inherits(work, name)).collect()
}

fn inherits(work: &Work, name: &str) -> bool {
    let listed = |pattern: &str| match pattern.strip_suffix('*') {
        Some(beginning) => name.starts_with(beginning),
        None => name == pattern,
    };
    USUAL.iter().any(|pattern| listed(pattern))
        || work.env_pass.iter().any(|pattern| listed(pattern))
        || work.secrets.iter().any(|secret| secret == name)
}
