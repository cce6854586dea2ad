//! Configuration of traces from the standard OpenTelemetry variables.

use std::time::Duration;

use crate::attempt::exec_env::Environment;

/// The standard's default is ten seconds; a user may be waiting for the end of a run.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The collector and the way to reach it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Settings {
    pub(crate) url: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) timeout: Duration,
    /// Attributes of the sender.
    pub(crate) resource: Vec<(String, String)>,
}

impl Settings {
    /// Reads the variables. `None` if they name no collector or disable traces.
    pub(crate) fn of(environment: &Environment) -> Option<Settings> {
        let get = |key: &str| {
            let value = environment.get(key)?.to_string_lossy().trim().to_owned();
            (!value.is_empty()).then_some(value)
        };
        let off = get("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true"));
        let none = get("OTEL_TRACES_EXPORTER").is_some_and(|value| value == "none");
        if off || none {
            return None;
        }
        let of_traces = |name: &str| get(&format!("OTEL_EXPORTER_OTLP_TRACES_{name}"));
        let of_all = |name: &str| get(&format!("OTEL_EXPORTER_OTLP_{name}"));
        let url = of_traces("ENDPOINT").or_else(|| {
            let base = of_all("ENDPOINT")?;
            Some(format!("{}/v1/traces", base.trim_end_matches('/')))
        })?;
        let headers = of_traces("HEADERS").or_else(|| of_all("HEADERS")).unwrap_or_default();
        let timeout = of_traces("TIMEOUT").or_else(|| of_all("TIMEOUT"));
        let timeout = timeout.and_then(|ms| ms.parse().ok()).map_or(TIMEOUT, Duration::from_millis);
        let mut resource = pairs(&get("OTEL_RESOURCE_ATTRIBUTES").unwrap_or_default());
        let name = get("OTEL_SERVICE_NAME");
        if let Some(name) = name.or_else(|| {
            let named = resource.iter().any(|(key, _)| key == "service.name");
            (!named).then(|| "orchestrate".to_owned())
        }) {
            resource.retain(|(key, _)| key != "service.name");
            resource.insert(0, ("service.name".to_owned(), name));
        }
        Some(Settings { url, headers: pairs(&headers), timeout, resource })
    }
}

/// Parses `key=value,key=value` with percent-encoded values.
fn pairs(text: &str) -> Vec<(String, String)> {
    let pair = |pair: &str| {
        let (key, value) = pair.split_once('=')?;
        let key = key.trim().to_owned();
        (!key.is_empty()).then(|| (key, decoded(value.trim())))
    };
    text.split(',').filter_map(pair).collect()
}

fn decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let (mut out, mut at) = (Vec::with_capacity(bytes.len()), 0);
    while at < bytes.len() {
        let code = text.get(at + 1..at + 3).filter(|_| bytes[at] == b'%');
        match code.and_then(|code| u8::from_str_radix(code, 16).ok()) {
            Some(byte) => {
                out.push(byte);
                at += 3;
            }
            None => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(variables: &[(&str, &str)]) -> Option<Settings> {
        let own = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).into());
        Settings::of(&variables.iter().map(own).collect())
    }

    #[test]
    fn the_standard_variables_say_where() {
        assert_eq!(settings(&[]), None);
        let base = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:4318/");
        let found = settings(&[base]).unwrap();
        assert_eq!(found.url, "http://localhost:4318/v1/traces");
        assert_eq!(found.resource, [("service.name".to_owned(), "orchestrate".to_owned())]);
        let own = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://x/y");
        let headers = ("OTEL_EXPORTER_OTLP_HEADERS", "api-key=a%20b, x = y,bad");
        let found = settings(&[base, own, headers, ("OTEL_SERVICE_NAME", "mine")]).unwrap();
        assert_eq!(found.url, "http://x/y");
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(found.headers, [pair("api-key", "a b"), pair("x", "y")]);
        assert_eq!(found.resource, [pair("service.name", "mine")]);
        assert_eq!(settings(&[base, ("OTEL_SDK_DISABLED", "true")]), None);
        assert_eq!(settings(&[base, ("OTEL_TRACES_EXPORTER", "none")]), None);
    }
}
