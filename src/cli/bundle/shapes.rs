//! What looks like a secret: tokens of well-known makers, keys in blocks, credentials in addresses
//! and headers, and values that are given to names such as `password`.
//!
//! **Invariant:** pure. It may hide too much; what it finds is gone.

pub(crate) const STARS: &[u8] = b"***";

/// How tokens of well-known makers begin, and how long they are at least.
const TOKENS: [(&str, usize); 42] = [
    ("sk-", 20),
    ("sk_live_", 16),
    ("sk_test_", 16),
    ("rk_live_", 16),
    ("ghp_", 20),
    ("gho_", 20),
    ("ghu_", 20),
    ("ghs_", 20),
    ("ghr_", 20),
    ("github_pat_", 20),
    ("glpat-", 16),
    ("gldt-", 16),
    ("glrt-", 16),
    ("xoxb-", 16),
    ("xoxp-", 16),
    ("xoxa-", 16),
    ("xoxs-", 16),
    ("xoxe", 16),
    ("xapp-", 16),
    ("AIza", 30),
    ("ya29.", 20),
    ("hf_", 20),
    ("npm_", 20),
    ("pypi-", 20),
    ("dop_v1_", 20),
    ("SG.", 20),
    ("AKIA", 20),
    ("ASIA", 20),
    ("AGE-SECRET-KEY-1", 20),
    ("nvapi-", 20),
    ("gsk_", 20),
    ("xai-", 20),
    ("pplx-", 20),
    ("r8_", 20),
    ("tvly-", 16),
    ("shpat_", 20),
    ("lin_api_", 20),
    ("sntrys_", 20),
    ("sbp_", 20),
    ("whsec_", 20),
    ("dckr_pat_", 20),
    ("AQoDYXdz", 30),
];
/// Parts of names whose values are secrets.
const NAMES: [&str; 20] = [
    "TOKEN",
    "SECRET",
    "PASSWORD",
    "PASSWD",
    "PASSPHRASE",
    "APIKEY",
    "CREDENTIAL",
    "CREDENTIALS",
    "AUTHORIZATION",
    "AUTHTOKEN",
    "COOKIE",
    "WEBHOOK",
    "DSN",
    "PAT",
    "PASS",
    "SECRETKEY",
    "ACCESSKEY",
    "PRIVATEKEY",
    "KEYS",
    "BEARER",
];
/// Parts that make a secret of a `KEY` beside them.
const KEYS: [&str; 9] =
    ["API", "ACCESS", "PRIVATE", "SECRET", "SIGNING", "ENCRYPTION", "MASTER", "DEPLOY", "ACCOUNT"];
/// How the value of a header begins that says who one is; the secret follows.
const SCHEMES: [&str; 9] = [
    "Bearer",
    "Basic",
    "Digest",
    "Token",
    "ApiKey",
    "Negotiate",
    "NTLM",
    "Signature",
    "AWS4-HMAC-SHA256",
];
/// Headers whose value is a secret as a whole.
const HEADERS: [&str; 2] = ["AUTHORIZATION", "COOKIE"];
/// Options of programs that take `who:password`.
const WHO: [&[u8]; 3] = [b"-u", b"--user", b"--proxy-user"];
/// Shorter runs of base64 hold no token.
const BASE64_MIN: usize = 24;

/// Whether the value of something that is called so is a secret.
pub(crate) fn is_secret_name(name: &str) -> bool {
    let parts = parts(name);
    let is_key = |pair: &[String]| match pair[1].as_str() {
        "KEY" => KEYS.contains(&pair[0].as_str()),
        // Alone it is where one works.
        "PWD" => true,
        _ => false,
    };
    let is_one = |part: &String| {
        NAMES.contains(&part.as_str()) || part.ends_with("PASSWORD") || part.ends_with("PASSWD")
    };
    parts.iter().any(is_one) || parts.windows(2).any(is_key)
}

/// Whether a word only says of what kind the secret after it is.
pub(crate) fn is_scheme(word: &[u8]) -> bool {
    SCHEMES.iter().any(|scheme| word.eq_ignore_ascii_case(scheme.as_bytes()))
}

/// The same of a variable of the environment, where any key is one, and any authorization.
pub(crate) fn is_secret_variable(name: &str) -> bool {
    let guessed = |part: &String| ["KEY", "AUTH", "TOKENS", "SECRETS"].contains(&part.as_str());
    is_secret_name(name) || parts(name).iter().any(guessed)
}

/// The words that a name is made of, in capitals: `apiKey` and `API_KEY` are `API` and `KEY`.
fn parts(name: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut before_small = false;
    for c in name.chars() {
        let breaks = !c.is_ascii_alphanumeric() || (c.is_ascii_uppercase() && before_small);
        if breaks {
            parts.push(String::new());
        }
        if c.is_ascii_alphanumeric() {
            parts.last_mut().expect("there is one").push(c.to_ascii_uppercase());
        }
        before_small = c.is_ascii_lowercase();
    }
    parts.retain(|part| !part.is_empty());
    parts
}

/// The values that a text of settings gives to names of secrets.
pub(crate) fn values(text: &str) -> Vec<String> {
    let bytes = text.as_bytes();
    let mut values = Vec::new();
    for (begin, end) in assignments(bytes, false) {
        let value = String::from_utf8_lossy(&bytes[begin..end]).into_owned();
        // It may stand elsewhere without the word before it.
        let bare = value.split_once(' ').filter(|(scheme, _)| is_scheme(scheme.as_bytes()));
        values.extend(bare.map(|(_, bare)| bare.trim().to_owned()));
        values.push(value);
    }
    values
}

/// Hides what looks like a secret.
pub(crate) fn hide(bytes: &[u8]) -> Vec<u8> {
    let hidden = hide_plain(bytes);
    replace(&hidden, encoded(&hidden))
}

fn hide_plain(bytes: &[u8]) -> Vec<u8> {
    let bytes = replace(bytes, blocks(bytes));
    let bytes = replace(&bytes, addresses(&bytes));
    let bytes = replace(&bytes, tokens(&bytes));
    replace(&bytes, assignments(&bytes, true))
}

type Places = Vec<(usize, usize)>;

fn replace(bytes: &[u8], places: Places) -> Vec<u8> {
    let (mut out, mut from) = (Vec::with_capacity(bytes.len()), 0);
    for (begin, end) in places {
        if begin >= from {
            out.extend_from_slice(&bytes[from..begin]);
            out.extend_from_slice(STARS);
            from = end;
        }
    }
    out.extend_from_slice(&bytes[from..]);
    out
}

fn find(hay: &[u8], needle: &[u8], from: usize) -> Option<usize> {
    let rest = hay.get(from..)?;
    rest.windows(needle.len()).position(|window| window == needle).map(|at| from + at)
}

/// What lies between the lines of a private key. One without its beginning or end is cut there.
fn blocks(bytes: &[u8]) -> Places {
    const BEGIN: &[u8] = b"-----BEGIN ";
    const END: &[u8] = b"-----END ";
    const KEY: &[u8] = b"PRIVATE KEY";
    let is_key = |at: usize| {
        let line = &bytes[at..bytes.len().min(at + 64)];
        find(line, KEY, 0).is_some()
    };
    let (mut places, mut from) = (Vec::new(), 0);
    if let Some(end) = find(bytes, END, 0).filter(|at| is_key(*at))
        && find(&bytes[..end], BEGIN, 0).is_none()
    {
        places.push((0, end));
        from = end + END.len();
    }
    while let Some(begin) = find(bytes, BEGIN, from) {
        from = begin + BEGIN.len();
        if is_key(begin) {
            let end = find(bytes, END, from).unwrap_or(bytes.len());
            places.push((from, end));
            from = end;
        }
    }
    places
}

/// Who and by which password, in `scheme://who:password@host`.
fn addresses(bytes: &[u8]) -> Places {
    let (mut places, mut from) = (Vec::new(), 0);
    while let Some(at) = find(bytes, b"://", from) {
        from = at + 3;
        let stops = |byte: &u8| byte.is_ascii_whitespace() || b"/?#\"'`<>\\".contains(byte);
        let end = bytes[from..].iter().position(stops).map_or(bytes.len(), |ahead| from + ahead);
        if let Some(host) = bytes[from..end].iter().rposition(|byte| *byte == b'@') {
            places.push((from, from + host));
        }
    }
    places
}

fn is_of_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"_-.".contains(&byte)
}

/// Words of a text, each from where it begins to where it ends. An escape is not part of one.
fn words(bytes: &[u8], is_of_word: impl Fn(u8) -> bool) -> Places {
    let (mut words, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        if bytes[at] == b'\\' {
            at += if bytes.get(at + 1) == Some(&b'u') { 6 } else { 2 };
            continue;
        }
        let begin = at;
        while at < bytes.len() && is_of_word(bytes[at]) {
            at += 1;
        }
        match at {
            _ if at > begin => words.push((begin, at)),
            _ => at += 1,
        }
    }
    words
}

fn tokens(bytes: &[u8]) -> Places {
    let mut places = Vec::new();
    let mut before: &[u8] = b"";
    for (begin, end) in words(bytes, is_of_token) {
        let word = &bytes[begin..end];
        let introduced = [&b"bearer"[..], b"basic"].iter().any(|w| before.eq_ignore_ascii_case(w));
        if introduced && word.len() >= 8 {
            // What follows such a word is base64, and of more letters than a token.
            let more = |byte: &u8| !is_of_token(*byte) && !b"+/=~".contains(byte);
            let rest = bytes[end..].iter().position(more).unwrap_or(bytes.len() - end);
            places.push((begin, end + rest));
        } else if is_token(word) {
            places.push((begin, end));
        } else if let Some(inside) = token_inside(word) {
            places.push((begin + inside, end));
        }
        before = word;
    }
    places
}

fn is_token(word: &[u8]) -> bool {
    let begins = |(prefix, least): &(&str, usize)| {
        word.len() >= *least && word.starts_with(prefix.as_bytes())
    };
    let mixed = word.iter().any(u8::is_ascii_digit) || word.len() > 40;
    let is_jwt = word.starts_with(b"eyJ") && word.iter().filter(|b| **b == b'.').count() == 2;
    is_jwt || (mixed && TOKENS.iter().any(begins))
}

/// Where in a word a token begins that something was written before: `KEY-sk-…`, `x.ghp_…`.
fn token_inside(word: &[u8]) -> Option<usize> {
    let after = |at: &usize| b"-._".contains(&word[at - 1]);
    (1..word.len()).filter(after).find(|at| is_token(&word[*at..]))
}

/// The values that are given to names of secrets: `NAME=value`, `name: value`, `"name": "value"`;
/// and to options of programs, `--name value`, which may also be a word in a sentence.
fn assignments(bytes: &[u8], options: bool) -> Places {
    let mut places = Vec::new();
    for (begin, end) in words(bytes, is_of_token) {
        let word = &bytes[begin..end];
        if options && WHO.contains(&word) {
            places.extend(password_after(bytes, end));
            continue;
        }
        let name = String::from_utf8_lossy(word);
        if !is_secret_name(&name) {
            continue;
        }
        let header = HEADERS.iter().any(|header| parts(&name).last().is_some_and(|p| p == header));
        let given = value_after(bytes, end, header);
        let is_option = options && word.starts_with(b"--");
        places.extend(given.or_else(|| argument_after(bytes, end).filter(|_| is_option)));
    }
    places
}

fn skip(bytes: &[u8], mut at: usize, wanted: &[u8]) -> usize {
    while bytes.get(at).is_some_and(|byte| wanted.contains(byte)) {
        at += 1;
    }
    at
}

/// The value after a name, if one is given to it and may be a secret.
fn value_after(bytes: &[u8], name_end: usize, header: bool) -> Option<(usize, usize)> {
    let at = skip(bytes, name_end, b"\\\"'");
    let at = skip(bytes, at, b" \t");
    if !matches!(bytes.get(at), Some(b'=' | b':')) {
        return None;
    }
    value_at(bytes, skip(bytes, at + 1, b" \t"), header)
}

/// The argument after an option: the next word, or the next text in a list.
fn argument_after(bytes: &[u8], option_end: usize) -> Option<(usize, usize)> {
    let at = skip(bytes, option_end, b"\\\"'");
    let next = skip(bytes, at, b", \t");
    let is_next = next > at && !matches!(bytes.get(next), Some(b'-'));
    is_next.then(|| value_at(bytes, next, false)).flatten()
}

/// The password after an option that takes `who:password`.
fn password_after(bytes: &[u8], option_end: usize) -> Option<(usize, usize)> {
    let (begin, end) = argument_after(bytes, option_end)?;
    let who = bytes[begin..end].iter().position(|byte| *byte == b':')?;
    may_be_secret(&bytes[begin + who + 1..end]).then_some((begin + who + 1, end))
}

/// The value that begins here, in quotes or without, if it may be a secret. Of a header it is all
/// that stands on its line, and so it is after a word that says what kind of secret follows.
fn value_at(bytes: &[u8], at: usize, header: bool) -> Option<(usize, usize)> {
    let escapes = skip(bytes, at, b"\\") - at;
    let quote = bytes.get(at + escapes).copied().filter(|byte| b"\"'".contains(byte));
    let (begin, end) = match quote {
        Some(quote) => {
            let begin = at + escapes + 1;
            (begin, quoted_end(bytes, begin, quote, escapes))
        }
        None => {
            let ends = |byte: &u8| byte.is_ascii_whitespace() || b",;&)}]\"'".contains(byte);
            let end = bytes[at..].iter().position(ends).map_or(bytes.len(), |ahead| at + ahead);
            let more = header || is_scheme(&bytes[at..end]);
            (at, if more { line_end(bytes, at) } else { without_escape(bytes, at, end) })
        }
    };
    may_be_secret(&bytes[begin..end]).then_some((begin, end))
}

/// Where a text in quotes ends. A quote inside of it has more escapes before it than the one that
/// it began with: `escapes` of them, as often as it was put into a text of its own.
fn quoted_end(bytes: &[u8], begin: usize, quote: u8, escapes: usize) -> usize {
    let mut at = begin;
    while at < bytes.len() && bytes[at] != b'\n' {
        if bytes[at] == quote {
            let before = bytes[begin..at].iter().rev().take_while(|byte| **byte == b'\\').count();
            match quote {
                // In YAML it is escaped by itself.
                b'\'' if bytes.get(at + 1) == Some(&quote) => at += 1,
                b'\'' => return at,
                _ if before % (2 * (escapes + 1)) == escapes => return at - escapes,
                _ => {}
            }
        }
        at += 1;
    }
    without_escape(bytes, begin, at)
}

/// Where what stands on a line ends. Quotes after a `=` are part of it, others are around it.
fn line_end(bytes: &[u8], begin: usize) -> usize {
    let (mut at, mut open) = (begin, None);
    while at < bytes.len() {
        match bytes[at] {
            b'\n' | b'\r' => break,
            b'\\' if matches!(bytes.get(at + 1), Some(b'n' | b'r')) => break,
            quote @ (b'"' | b'\'') => {
                let mut before = bytes[begin..at].iter().rev().skip_while(|byte| **byte == b'\\');
                match open {
                    Some(opened) if opened == quote => open = None,
                    Some(_) => {}
                    None if before.next() == Some(&b'=') => open = Some(quote),
                    None => break,
                }
            }
            _ => {}
        }
        at += 1;
    }
    without_escape(bytes, begin, at)
}

/// The escape before an escaped quote is not part of what is in quotes.
fn without_escape(bytes: &[u8], begin: usize, end: usize) -> usize {
    end - bytes[begin..end].iter().rev().take_while(|byte| **byte == b'\\').count()
}

fn may_be_secret(value: &[u8]) -> bool {
    let is_number = value.iter().all(|byte| byte.is_ascii_digit() || b".-+".contains(byte));
    let word = [&b"null"[..], b"true", b"false", b"none", b"None", b"~", b"***"].contains(&value);
    let refers = value.starts_with(b"$") || value.starts_with(b"[") || value.starts_with(b"{");
    !value.is_empty() && !is_number && !word && !refers && !is_scheme(value)
}

/// Runs of base64 in which something is hidden that looks like a secret.
fn encoded(bytes: &[u8]) -> Places {
    let is_of_base64 = |byte: u8| byte.is_ascii_alphanumeric() || b"+/-_=".contains(&byte);
    let mut runs = words(bytes, is_of_base64);
    runs.retain(|(begin, end)| {
        let run = &bytes[*begin..*end];
        run.len() >= BASE64_MIN && decode(run).is_some_and(|text| hide_plain(&text) != text)
    });
    runs
}

/// What base64 of either alphabet says, if that is text.
fn decode(run: &[u8]) -> Option<Vec<u8>> {
    let (mut bits, mut count, mut out) = (0u32, 0, Vec::with_capacity(run.len()));
    for byte in run.iter().filter(|byte| **byte != b'=') {
        let value = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' | b'-' => 62,
            _ => 63,
        };
        bits = bits << 6 | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            out.push((bits >> count) as u8);
        }
    }
    let is_text = |byte: &&u8| byte.is_ascii_graphic() || byte.is_ascii_whitespace();
    let text = out.iter().filter(is_text).count();
    (!out.is_empty() && text * 10 >= out.len() * 9).then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> String {
        String::from_utf8_lossy(&hide(text.as_bytes())).into_owned()
    }

    #[test]
    fn names_of_secrets_are_told_from_others() {
        for name in ["GITHUB_TOKEN", "apiKey", "api-key", "DB_PASSWORD", "client_secret", "npm_pat"]
        {
            assert!(is_secret_name(name) && is_secret_variable(name), "{name}");
        }
        for name in ["input_tokens", "KEYBOARD", "monkey", "author", "PWD", "PATH", "key", "run"] {
            assert!(!is_secret_name(name), "{name}");
        }
        assert!(is_secret_variable("SSH_AUTH") && is_secret_variable("DEPLOY_KEY"));
        assert!(!is_secret_variable("PATH") && !is_secret_variable("PWD"));
    }

    #[test]
    fn tokens_of_makers_are_hidden_wherever_they_stand() {
        let token = format!("ghp_{}", "a1B2".repeat(9));
        assert_eq!(shown(&format!("use {token}, please")), "use ***, please");
        assert_eq!(shown(&format!(r#"{{"o":"line\n{token}\n"}}"#)), r#"{"o":"line\n***\n"}"#);
        assert_eq!(shown(&format!("x-{token}")), "x-***");
        assert_eq!(shown("key AKIAABCDEFGHIJKLMN12 x"), "key *** x");
        assert_eq!(shown("eyJhbGciOi.eyJzdWIiOi.SflKxwRJ"), "***");
        assert_eq!(shown("Authorization: Bearer abcdef0123+/=="), "Authorization: ***");
        assert_eq!(
            shown("sk-learn is a library, ghp_ a prefix"),
            "sk-learn is a library, ghp_ a prefix"
        );
    }

    #[test]
    fn values_of_names_are_hidden_and_words_are_not() {
        assert_eq!(shown("DB_PASSWORD=hunter2 x"), "DB_PASSWORD=*** x");
        assert_eq!(shown(r#"{"api_key":"abc","n":1}"#), r#"{"api_key":"***","n":1}"#);
        assert_eq!(
            shown(r#"{\"secret\": \"a b\", \"n\": 1}"#),
            r#"{\"secret\": \"***\", \"n\": 1}"#
        );
        assert_eq!(shown("password: 'a b c'\nnext: 1"), "password: '***'\nnext: 1");
        for text in
            ["secrets: [A, B]", "\"input_tokens\": 12", "token: null", "password: $PW", "a key: x"]
        {
            assert_eq!(shown(text), text);
        }
    }

    #[test]
    fn a_header_is_hidden_to_its_end_and_its_scheme_is_no_value() {
        for scheme in ["Bearer", "bearer", "token", "Digest", "AWS4-HMAC-SHA256"] {
            let header = format!("Authorization: {scheme} zXcQef0123456789kLmN02");
            assert_eq!(shown(&format!("{header}\nnext")), "Authorization: ***\nnext", "{scheme}");
            let found = values(&format!(r#"{{"output":"{header}\n"}}"#));
            assert!(found.contains(&"zXcQef0123456789kLmN02".to_owned()), "{found:?}");
            assert!(!found.iter().any(|value| value.eq_ignore_ascii_case(scheme)), "{found:?}");
        }
        let signed = "authorization: AWS4-HMAC-SHA256 Credential=a/b, Signature=c0ffee0123";
        assert_eq!(shown(signed), "authorization: ***");
        let digest = r#"Authorization: Digest username="u", response="abc01"; x"#;
        assert_eq!(shown(digest), "Authorization: ***");
        assert_eq!(
            shown(r#"curl -H "Authorization: Bearer abcdef01" https://host"#),
            r#"curl -H "Authorization: ***" https://host"#
        );
        assert_eq!(shown("Cookie: a=b; c=d"), "Cookie: ***");
    }

    #[test]
    fn secrets_on_command_lines_are_hidden() {
        assert_eq!(shown("mysql --password hunter2 db"), "mysql --password *** db");
        assert_eq!(shown(r#"["x", "--api-key", "abc", "y"]"#), r#"["x", "--api-key", "***", "y"]"#);
        assert_eq!(shown("curl -u user:hunter2 host"), "curl -u user:*** host");
        assert_eq!(shown("MYSQL_PWD=hunter2 PGPASSWORD=x1"), "MYSQL_PWD=*** PGPASSWORD=***");
        for text in ["docker run -u 1000:1000", "--password --next", "PWD=/here", "-u root x"] {
            assert_eq!(shown(text), text);
        }
    }

    #[test]
    fn a_quote_in_a_value_does_not_end_it() {
        assert_eq!(shown(r#"{"password":"abc\"rest","n":1}"#), r#"{"password":"***","n":1}"#);
        assert_eq!(shown(r#"{"password":"abc\\","n":1}"#), r#"{"password":"***","n":1}"#);
        let nested = r#"{\"password\":\"abc\\\"rest\",\"n\":1}"#;
        assert_eq!(shown(nested), r#"{\"password\":\"***\",\"n\":1}"#);
        assert_eq!(shown("password: 'it''s' # x"), "password: '***' # x");
    }

    #[test]
    fn keys_and_credentials_in_addresses_are_hidden() {
        let key = "-----BEGIN RSA PRIVATE KEY-----\nMIIE\nabc\n-----END RSA PRIVATE KEY-----\n";
        assert!(!shown(key).contains("MIIE"), "{}", shown(key));
        assert!(!shown(&key[33..]).contains("abc"), "one without its beginning");
        assert!(!shown(&key[..40]).contains("abc"), "one without its end");
        assert_eq!(
            shown("https://me:pw@host/x https://host/a@b"),
            "https://***@host/x https://host/a@b"
        );
    }

    #[test]
    fn base64_of_what_looks_like_a_secret_is_hidden() {
        // `password=hunter2-and-more`, and a text without a secret.
        assert_eq!(shown("x cGFzc3dvcmQ9aHVudGVyMi1hbmQtbW9yZQ== y"), "x *** y");
        let harmless = "dGhpcyBpcyBvbmx5IGEgdGV4dCBvZiBub3RoaW5n";
        assert_eq!(shown(harmless), harmless);
    }
}
