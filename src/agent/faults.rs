//! Classifies failures of providers and scripts by their text, to decide about the next attempt.
//!
//! A failure is [`Fatal`](FaultClass::Fatal) if the next attempt would meet it too, and
//! [`Transient`](FaultClass::Transient) if waiting may help. Fatal signs take precedence, because a
//! denied login is often reported together with a failed process.
//!
//! Some providers print the notice of a limit or of a refusal as if it were their answer.
//! [`notice`] recognizes such answers by their whole form, because an agent may legitimately write
//! about limits.

use serde::{Deserialize, Serialize};

/// The prospects of another attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FaultClass {
    /// None, until a person acts or a limit ends.
    Fatal,
    /// Good, after a delay.
    Transient,
    Unknown,
}

/// Signs in lower case, with `_` and `-` replaced by spaces.
const FATAL: [&str; 28] = [
    "unauthorized",
    "forbidden",
    "invalid token",
    "authentication failed",
    "authentication error",
    "failed to authenticate",
    "permission denied",
    "invalid api key",
    "not logged in",
    "please run /login",
    "credit balance",
    "credit exhaustion",
    "insufficient credit",
    "insufficient quota",
    "out of credits",
    "out of extra usage",
    "session limit",
    "usage limit reached",
    "hit your usage limit",
    "weekly limit",
    "monthly limit",
    "hour limit reached",
    "hit your limit",
    "daily quota",
    "quota will reset after",
    "check your plan and billing",
    "prompt is too long",
    "prompt too long",
];
/// Signs so common and ambiguous that any transient sign outweighs them.
const PERHAPS_FATAL: [&str; 1] = ["auth error"];
const TRANSIENT: [&str; 33] = [
    "timeout",
    "timed out",
    "deadline exceeded",
    "econnrefused",
    "econnreset",
    "etimedout",
    "eai again",
    "connection refused",
    "connection reset",
    "connection failed",
    "connection error",
    "connection closed",
    "connectionrefused",
    "connectionclosed",
    "connectionreset",
    "stream disconnected",
    "network error",
    "network is unreachable",
    "socket hang up",
    "rate limit",
    "ratelimit",
    "too many requests",
    "overloaded",
    "at capacity",
    "high demand",
    "bad gateway",
    "service unavailable",
    "temporarily unavailable",
    "internal server error",
    "try again later",
    "exited with code",
    "claude code crash",
    "claude code crashed",
];

const FATAL_CODES: [&str; 2] = ["401", "403"];
const TRANSIENT_CODES: [&str; 7] = ["408", "429", "500", "502", "503", "504", "529"];

/// Classifies a failure by its text.
pub(crate) fn classify(text: &str) -> FaultClass {
    let text = plain(text);
    let says = |signs: &[&str]| signs.iter().any(|sign| text.contains(sign));
    let codes = |codes: &[&str]| has_code(&text, codes);
    if says(&FATAL) || codes(&FATAL_CODES) {
        FaultClass::Fatal
    } else if says(&TRANSIENT) || codes(&TRANSIENT_CODES) {
        FaultClass::Transient
    } else if says(&PERHAPS_FATAL) {
        FaultClass::Fatal
    } else {
        FaultClass::Unknown
    }
}

/// Converts a text to lower case and normalizes separators and apostrophes.
fn plain(text: &str) -> String {
    let letter = |c| match c {
        '_' | '-' => ' ',
        '’' => '\'',
        c => c,
    };
    text.to_lowercase().chars().map(letter).collect()
}

/// Returns true if one of these numbers appears as a response status and not as another number.
fn has_code(text: &str, codes: &[&str]) -> bool {
    let found = |code: &&str| text.match_indices(*code).any(|(at, _)| is_status(text, at));
    codes.iter().any(found)
}

/// Returns true if the three digits at an offset are a separate number after a word that refers to
/// a response: `status: 503`, `HTTP/1.1 429`, `"code":401`, `request rejected (429)`. In `error:
/// 403 tests failed` they are a count.
fn is_status(text: &str, at: usize) -> bool {
    const WORDS: [&str; 9] = [
        "http",
        "status",
        "code",
        "statuscode",
        "errorcode",
        "error",
        "rejected",
        "returned",
        "response",
    ];
    let (before, after) = (&text[..at], &text[at + 3..]);
    let mut next = after.chars();
    let joined = match next.next() {
        Some('.' | ',') => next.next().is_some_and(|c| c.is_ascii_digit()),
        Some(c) => c.is_alphanumeric(),
        None => false,
    };
    let subject = before.trim_end_matches(|c: char| c.is_whitespace() || "\"':=([".contains(c));
    if joined || subject.len() == before.len() {
        return false;
    }
    let end = |c: char| !c.is_ascii_alphanumeric() && c != '/' && c != '.';
    let word = subject.rsplit(end).next().unwrap_or_default();
    let counts = before[subject.len()..].starts_with(':')
        && after.strip_prefix(' ').is_some_and(|noun| noun.starts_with(char::is_alphabetic))
        && word == "error"
        && !subject.ends_with("api error");
    !counts && (WORDS.contains(&word) || word.starts_with("http/"))
}

/// Maximum length of a notice. Real notices are far shorter, and most answers far longer.
const NOTICE: usize = 600;

/// Classifies an answer that consists only of a limit notice or a refusal. Returns `None` for a
/// real answer.
pub(crate) fn notice(answer: &str) -> Option<FaultClass> {
    if is_limit_notice(answer) {
        Some(FaultClass::Fatal)
    } else {
        is_refusal(answer).then_some(FaultClass::Transient)
    }
}

/// Maximum length of a refusal: errors quote the request, but not much of it.
const REFUSAL_MAX: usize = 4096;

/// The words that a service's refusal consists of, apart from numbers.
const REFUSAL: [&str; 35] = [
    "again",
    "an",
    "api",
    "at",
    "bad",
    "capacity",
    "code",
    "error",
    "errors",
    "exceeded",
    "failed",
    "gateway",
    "http",
    "internal",
    "is",
    "later",
    "limit",
    "limited",
    "many",
    "moment",
    "overloaded",
    "please",
    "rate",
    "rejected",
    "repeated",
    "request",
    "requests",
    "retry",
    "server",
    "service",
    "status",
    "too",
    "try",
    "unavailable",
    "with",
];

/// Returns true if an answer is only the error of an overloaded service: `API Error: 429
/// {"type":"error",…}`, `Error: 529 Overloaded`.
fn is_refusal(answer: &str) -> bool {
    let answer = answer.trim();
    if answer.len() > REFUSAL_MAX {
        return false;
    }
    let (said, body) = match answer.find('{') {
        Some(at) => (&answer[..at], Some(&answer[at..])),
        None => (answer, None),
    };
    let said = plain(said);
    let words: Vec<_> =
        said.split(|c: char| !c.is_alphanumeric()).filter(|w| !w.is_empty()).collect();
    let code = |word: &&str| TRANSIENT_CODES.contains(word);
    let Some(at) = words.iter().position(code) else { return false };
    // A number alone may be the requested answer: an error names itself and its reason.
    let reason = words[at + 1..].iter().any(|word| is_word(word));
    let body_is_error = body.map(|body| {
        serde_json::from_str::<serde_json::Value>(body)
            .is_ok_and(|body| body.get("error").is_some_and(|error| !error.is_null()))
    });
    ["api", "error", "http"].contains(&words[0])
        && words[..at].contains(&"error")
        && words.iter().all(|word| code(word) || REFUSAL.contains(word))
        && body_is_error.unwrap_or(reason)
}

/// Returns true if an answer is only the notice that a limit was reached.
///
/// It starts with the notice, and all its other sentences are about limits too.
fn is_limit_notice(answer: &str) -> bool {
    let answer = answer.trim();
    if answer.len() > NOTICE {
        return false;
    }
    let mut sentences = sentences(answer).filter(|words| words.iter().any(|word| is_word(word)));
    let Some(first) = sentences.next() else {
        return false;
    };
    let Some(rest) = after_notice(&first) else {
        return false;
    };
    let known = |word: &String| NOTICE_WORDS.contains(&word.as_str());
    let goes_on = |word: &String| GOES_ON.contains(&word.as_str()) || !is_word(word);
    rest.first().is_none_or(goes_on) && sentences.all(|words| words.iter().any(known))
}

/// Words that may precede a notice.
const PREAMBLE: [&str; 16] = [
    "ai",
    "anthropic",
    "api",
    "claude",
    "code",
    "codex",
    "error",
    "gemini",
    "http",
    "invalid",
    "message",
    "openai",
    "request",
    "status",
    "type",
    "warning",
];
/// Kinds of limits.
const KINDS: [&str; 22] = [
    "current", "daily", "extra", "free", "haiku", "hour", "hourly", "max", "message", "model",
    "monthly", "opus", "plan", "pro", "rate", "request", "session", "sonnet", "spending", "tier",
    "usage", "weekly",
];
/// Words with which a notice may continue its sentence.
const GOES_ON: [&str; 13] = [
    "and", "for", "it", "on", "or", "please", "reset", "resets", "to", "try", "until", "upgrade",
    "your",
];
/// Each further sentence of a notice contains at least one of these words.
const NOTICE_WORDS: [&str; 20] = [
    "again", "billing", "credit", "credits", "limit", "limits", "login", "plan", "plans",
    "purchase", "quota", "request", "reset", "resets", "retry", "switch", "upgrade", "usage",
    "wait", "extra",
];

/// Returns the words after the notice at the start of a sentence.
fn after_notice(sentence: &[String]) -> Option<&[String]> {
    let words = skip(sentence, |word| PREAMBLE.contains(&word) || !is_word(word));
    // The name of a limit may have been skipped as part of the preamble.
    let starts = [words, sentence];
    starts.into_iter().find_map(|words| {
        your_limit(words).or_else(|| limit_reached(words)).or_else(|| out_of_money(words))
    })
}

/// Matches `you've hit your session limit`, `you exceeded your current quota`.
fn your_limit(words: &[String]) -> Option<&[String]> {
    let words = skip(words, |word| ["you", "you've", "have"].contains(&word));
    let words = one_of(words, &["hit", "reached", "exceeded", "exhausted"])?;
    let words = one_of(words, &["your"])?;
    let end = words.iter().take(5).position(|word| {
        ["limit", "limits", "quota", "capacity", "credits"].contains(&word.as_str())
    })?;
    Some(&words[end + 1..])
}

/// Matches `claude ai usage limit reached`, `your weekly limit has been reached`.
fn limit_reached(words: &[String]) -> Option<&[String]> {
    let words = skip(words, |word| {
        ["claude", "your"].contains(&word) || KINDS.contains(&word) || !is_word(word)
    });
    let words = one_of(words, &["limit", "quota"])?;
    let words = skip(words, |word| ["has", "been", "was", "is"].contains(&word));
    one_of(words, &["reached", "exceeded", "hit"])
}

/// Matches `credit balance is too low`, `you're out of extra usage`.
fn out_of_money(words: &[String]) -> Option<&[String]> {
    let words = skip(words, |word| ["your", "you", "you're", "are"].contains(&word));
    let credit = one_of(words, &["credit"]).and_then(|words| one_of(words, &["balance"]));
    if let Some(words) = credit {
        let words = skip(words, |word| ["is", "too"].contains(&word));
        return one_of(words, &["low", "insufficient", "exhausted", "empty"]);
    }
    if let Some(words) = one_of(words, &["insufficient"]) {
        return one_of(words, &["credit", "credits", "quota", "balance", "funds"]);
    }
    let words = one_of(one_of(words, &["out"])?, &["of"])?;
    one_of(skip(words, |word| word == "extra"), &["usage", "credits", "quota", "tokens"])
}

fn one_of<'w>(words: &'w [String], wanted: &[&str]) -> Option<&'w [String]> {
    let (first, rest) = words.split_first()?;
    wanted.contains(&first.as_str()).then_some(rest)
}

fn skip(words: &[String], unwanted: impl Fn(&str) -> bool) -> &[String] {
    let count = words.iter().take_while(|word| unwanted(word)).count();
    &words[count..]
}

/// Returns true for a word, false for a number.
fn is_word(word: &str) -> bool {
    word.contains(|c: char| c.is_alphabetic())
}

/// Splits a text into sentences of words. A dot ends a sentence only before a space or at the end.
fn sentences(text: &str) -> impl Iterator<Item = Vec<String>> {
    let text = plain(text).replace(['\n', '·', '∙', '•', '|', '!', ';', '—', '–'], ". ");
    let words = |sentence: &str| -> Vec<String> {
        let words = sentence.split(|c: char| !c.is_alphanumeric() && c != '\'');
        words.filter(|word| !word.is_empty()).map(str::to_owned).collect()
    };
    text.split(". ").map(words).collect::<Vec<_>>().into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::random::Random;

    fn are(class: FaultClass, texts: &[&str]) {
        for text in texts {
            assert_eq!(classify(text), class, "{text}");
        }
    }

    #[test]
    fn what_a_person_must_mend_is_fatal() {
        are(
            FaultClass::Fatal,
            &[
                "Unauthorized",
                "403 Forbidden",
                "invalid token",
                "Authentication failed for 'https://example.org'",
                "bash: ./x: Permission denied",
                "unexpected status 401 from the server",
                "API Error: 403 {\"type\":\"error\"}",
                "Invalid API key · Please run /login",
                "Not logged in",
                "Failed to authenticate. API Error: 401",
                "{\"api_error_status\":401}",
                "{\"error\":{\"code\":403}}",
                "HTTP/1.1 401",
                "Credit balance is too low",
                "You've hit your session limit · resets 3am",
                "You’ve hit your limit · resets 12:19am (UTC)",
                "Claude AI usage limit reached|1735689600",
                "api_error: usage_limit_reached",
                "You've hit your usage limit … try again at Nov 16th, 2026 12:24 AM.",
                "insufficient_quota",
                "You have exhausted your daily quota on this model",
                "credit exhaustion detected",
                "terminal_reason: prompt_too_long",
                "unauthorized: the process exited with code 1",
                "429: usage limit reached",
                "auth error",
            ],
        );
    }

    #[test]
    fn what_may_pass_is_transient() {
        are(
            FaultClass::Transient,
            &[
                "request timeout",
                "it took too long: timed out after 120 s",
                "connect ECONNREFUSED 127.0.0.1:443",
                "read ECONNRESET",
                "ETIMEDOUT",
                "Rate limit exceeded",
                "rate_limit_error",
                "429 Too Many Requests",
                "HTTP 429",
                "HTTP/2 503",
                "status 503",
                "status: 529",
                "status code 502",
                "\"status\":429",
                "{\"error_status\": 529}",
                "{\"statusCode\":503}",
                "error 503",
                "error 503 while fetching",
                "API Error: 529 from the server",
                "The requested URL returned error: 503",
                "API Error: 500 {\"type\":\"error\"}",
                "API Error: Request rejected (429)",
                "exceeded retry limit, last status: 429 Too Many Requests",
                "We're currently experiencing high demand",
                "stream disconnected before completion",
                "api_error: connection_failed",
                "the model is overloaded",
                "the model is at capacity",
                "network error",
                "socket hang up",
                "Claude exited with code 1",
                "claude code crash",
                "auth error: socket hang up",
                "502 Bad Gateway",
                "server returned 503.",
            ],
        );
    }

    #[test]
    fn numbers_alone_say_nothing() {
        are(
            FaultClass::Unknown,
            &[
                "",
                "assertion failed",
                "401",
                "failed at line 429",
                "src/a.rs:503:12: expected `;`",
                "took 4290 ms",
                "wrote 429 files",
                "1.429 seconds",
                "error 4291",
                "error 429.5",
                "error 429,000",
                "error: a429",
                "status 429x",
                "id 5f403a",
                "$403 left",
                "commit 401f503",
                "port 5029",
                "status: 404",
                "encode 401",
                "error: 403 tests failed",
                "memory usage limit of the job",
            ],
        );
    }

    #[test]
    fn a_notice_is_known() {
        for notice in [
            "You've hit your session limit · resets 3am",
            "You’ve hit your session limit · resets 12:50am (America/Los_Angeles)\n",
            "You've hit your session limit · resets 5:40pm (Europe/Berlin)\n/login to switch to an \
             API usage-billed account.",
            "You've hit your session limit · resets 11:50pm (Asia/Riyadh)\n/upgrade to increase \
             your usage limit.",
            "You've hit your limit · resets 12:19am (UTC)",
            "You've hit your weekly limit · resets Oct 9, 5pm",
            "You've hit your Opus limit · resets 3am",
            "Claude AI usage limit reached|1735689600",
            "Claude usage limit reached. Your limit will reset at 1pm (Etc/GMT+5).",
            "5-hour limit reached ∙ resets 3am",
            "Session limit reached ∙ resets 3am\n/upgrade to increase your usage limit",
            "Your weekly limit has been reached.",
            "Credit balance is too low",
            "Your credit balance is too low to access the Anthropic API. Please go to Plans & \
             Billing to upgrade or purchase credits.",
            "API Error: 400 {\"type\":\"error\",\"error\":{\"type\":\"invalid_request_error\",\
             \"message\":\"Your credit balance is too low to access the Anthropic API.\"}}",
            "You're out of extra usage · resets 3pm",
            "You've hit your usage limit. To get more access now, send a request to your admin or \
             try again at 12:16 PM.",
            "You've hit your usage limit. Upgrade to Pro or try again at Nov 16th, 2026 12:24 AM.",
            "You have exhausted your daily quota on this model.",
            "You have exhausted your capacity on this model. Your quota will reset after 2h52m39s.",
            "You exceeded your current quota, please check your plan and billing details.",
            "Insufficient credits",
            "Usage limit reached",
        ] {
            assert!(is_limit_notice(notice), "{notice}");
        }
    }

    #[test]
    fn the_error_of_a_busy_service_is_no_answer() {
        let body = "{\"type\":\"error\",\"error\":{\"type\":\"rate_limit_error\",\"message\":\
                    \"This request would exceed the limit of 40,000 input tokens per minute.\"},\
                    \"request_id\":\"req_1\"}";
        for refusal in [
            &format!("API Error: 429 {body}"),
            &format!("API Error (429 {body}"),
            "API Error: 529 {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\"}}\n",
            "Error: 429 Too Many Requests",
            "API Error: 529 Overloaded",
            "API Error: 529 Overloaded. Please try again later.",
            "Error 503: Service Unavailable",
            "API Error: 500 Internal server error",
        ] {
            assert_eq!(notice(refusal), Some(FaultClass::Transient), "{refusal}");
        }
        for answer in [
            body,
            "429",
            "HTTP 429",
            "429 Too Many Requests",
            "Error: 429",
            "Error: 429 tests failed",
            "Error: 429 Too Many Requests is what the server says; the client now waits.",
            "API Error: 429 is retried now.",
            "API Error: 429 {",
            "API Error: 429 {\"ok\":true}",
            "API Error: 404 Not Found",
            "The service said API Error: 529 Overloaded",
            &format!("I got API Error: 429 {body}"),
            &format!("API Error: 429 {body}\nI now retry after that."),
        ] {
            assert_eq!(notice(answer), None, "{answer}");
        }
    }

    #[test]
    fn an_answer_about_limits_is_an_answer() {
        let long = format!("You've hit your session limit · resets 3am\n{}", "limit ".repeat(200));
        for answer in [
            "",
            "···",
            "Done.",
            "I fixed the usage limit banner.",
            "Fixed: `Credit balance is too low` is shown in red now.",
            "The error \"You've hit your session limit\" comes from limits.rs.",
            "Usage limit reached handling was added.",
            "Usage limit reached. I wrote a test for that message, and it passes.",
            "You've hit your session limit. Here is what I did before:\n- parser\n- tests",
            "Session limits are described in the manual.",
            "Credit balance is computed from the ledger.",
            "Limit the number of tries.",
            "You are out of luck.",
            "Rate limits: 5 per minute.",
            "You have reached the end of the list.",
            &long,
        ] {
            assert!(!is_limit_notice(answer), "{answer}");
        }
    }

    #[test]
    fn a_class_has_a_stable_name() {
        let names = [FaultClass::Fatal, FaultClass::Transient, FaultClass::Unknown]
            .map(|class| serde_json::to_string(&class).unwrap());
        assert_eq!(names, ["\"fatal\"", "\"transient\"", "\"unknown\""]);
        assert_eq!(serde_json::from_str::<FaultClass>(&names[0]).unwrap(), FaultClass::Fatal);
    }

    #[test]
    fn signs_are_written_as_texts_are_read() {
        for sign in FATAL.iter().chain(&TRANSIENT).chain(&PERHAPS_FATAL) {
            assert_eq!(plain(sign), *sign);
        }
    }

    #[test]
    fn whatever_is_said_can_be_read() {
        const SCRAPS: [&str; 18] = [
            "429", "401", "status", " ", ":", "\"", "é", "İ", "·", "|", "\n", ". ", "your", "hit ",
            "limit", "reached", "(", "http/",
        ];
        let mut random = Random::new(6);
        let mut known = 0;
        for _ in 0..20_000 {
            let text: String =
                (0..random.below(10)).map(|_| SCRAPS[random.below(SCRAPS.len())]).collect();
            known += usize::from(classify(&text) != FaultClass::Unknown);
            known += usize::from(is_limit_notice(&text));
        }
        assert!(known > 100, "{known}");
        for row in ["429", "status 429x ", "(", " ", "error 4 "] {
            classify(&row.repeat((1 << 18) / row.len()));
        }
    }
}
