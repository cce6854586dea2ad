//! Injects a step's dependencies into its prompt: their names, or their content.
//!
//! **Invariant:** at most [`CAP`] bytes of names or content are injected. Omissions are stated in
//! the prompt and in the [`Cut`] that is recorded.

use serde::Serialize;
use serde_json::{Value, json};

use crate::workflow::plan::{Inject, InjectMode, Position};

/// Maximum number of bytes to inject.
pub(crate) const CAP: u64 = 256 * 1024;
/// Maximum number of omitted files to name.
const NAMED_OMISSIONS: usize = 10;

/// A dependency that exists.
#[derive(Clone, Debug, Default)]
pub(crate) struct Found {
    pub path: String,
    pub required: bool,
    pub size: u64,
    /// The first [`CAP`] bytes if content is injected; `None` for a directory.
    pub head: Option<Vec<u8>>,
}

/// Statistics about an injection that did not fit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Cut {
    pub total_size: u64,
    pub shown_size: u64,
    pub files_shown: usize,
    pub files_truncated: usize,
    pub files_omitted: usize,
}

impl Cut {
    pub(crate) fn to_json(&self) -> Value {
        json!({ "injection_truncated": true, "truncation_details": self })
    }
}

/// Returns the prompt with its dependencies, and the omissions if there are any. `files` must be
/// sorted by path.
pub(crate) fn inject(prompt: &str, inject: &Inject, files: &[Found]) -> (String, Option<Cut>) {
    if files.is_empty() {
        return (prompt.to_owned(), None);
    }
    let (block, cut) = match inject.mode {
        InjectMode::List => list(inject, files),
        InjectMode::Content => content(inject, files),
    };
    let text = match inject.position {
        Position::Prepend => format!("{block}\n\n{prompt}"),
        Position::Append if prompt.ends_with('\n') => format!("{prompt}\n{block}\n"),
        Position::Append => format!("{prompt}\n\n{block}\n"),
    };
    (text, cut)
}

fn instruction(inject: &Inject) -> &str {
    inject.instruction.as_deref().unwrap_or(match inject.mode {
        InjectMode::List => "The following files are required inputs for this task:",
        InjectMode::Content => "The following file contents are provided for context:",
    })
}

fn list(inject: &Inject, files: &[Found]) -> (String, Option<Cut>) {
    let of = |required| files.iter().filter(move |file| file.required == required);
    let mut lines = Vec::new();
    if of(true).next().is_some() && of(false).next().is_some() {
        lines.push("Required:".to_owned());
        lines.extend(of(true).map(|file| format!("- {}", file.path)));
        lines.push("Optional (if available):".to_owned());
        lines.extend(of(false).map(|file| format!("- {}", file.path)));
    } else {
        lines.extend(files.iter().map(|file| format!("- {}", file.path)));
    }
    let size = |line: &String| line.len() as u64 + 1;
    let total: u64 = lines.iter().map(size).sum();
    let mut block = instruction(inject).to_owned();
    let (mut shown, mut named) = (0, 0);
    for line in &lines {
        if shown + size(line) > CAP {
            break;
        }
        shown += size(line);
        named += usize::from(line.starts_with("- "));
        block.push('\n');
        block.push_str(line);
    }
    let omitted = files.len() - named;
    if omitted == 0 {
        return (block, None);
    }
    block.push_str(&format!("\n[... {omitted} more files truncated ({} total)]", human(total)));
    let cut = Cut {
        total_size: total,
        shown_size: shown,
        files_shown: named,
        files_truncated: 0,
        files_omitted: omitted,
    };
    (block, Some(cut))
}

fn content(inject: &Inject, files: &[Found]) -> (String, Option<Cut>) {
    let mut block = format!("{}\n", instruction(inject));
    let (mut left, mut headers_left, mut shown_size) = (CAP, CAP, 0);
    let (mut shown_files, mut truncated) = (0, 0);
    let mut omitted = Vec::new();
    for file in files {
        let Some(head) = &file.head else {
            block.push_str(&format!("\n=== Directory: {} ===\n", file.path));
            continue;
        };
        let header = file.path.len() as u64 + 64;
        if (left == 0 && file.size > 0) || header > headers_left {
            omitted.push(file);
            continue;
        }
        headers_left -= header;
        let fits = file.size <= left && head.len() as u64 == file.size;
        let text = String::from_utf8_lossy(&head[..head.len().min(left as usize)]);
        let text = if fits { &text } else { text.trim_end_matches('\u{fffd}') };
        shown_files += 1;
        if fits {
            block.push_str(&format!("\n=== File: {} ({} bytes) ===\n", file.path, file.size));
            push_line(&mut block, text);
            left -= file.size;
            shown_size += file.size;
        } else {
            let shown = text.len() as u64;
            let (path, size) = (&file.path, file.size);
            block.push_str(&format!("\n=== File: {path} ({shown}/{size} bytes) ===\n"));
            push_line(&mut block, text);
            block.push_str(&format!(
                "[... truncated: {} of {} shown]\n",
                human(shown),
                human(size)
            ));
            truncated += 1;
            shown_size += shown;
            left = 0;
        }
    }
    push_omitted(&mut block, &omitted);
    let total: u64 = files.iter().filter(|file| file.head.is_some()).map(|file| file.size).sum();
    let cut = (truncated > 0 || !omitted.is_empty()).then_some(Cut {
        total_size: total,
        shown_size,
        files_shown: shown_files,
        files_truncated: truncated,
        files_omitted: omitted.len(),
    });
    block.truncate(block.trim_end_matches('\n').len());
    (block, cut)
}

fn push_line(block: &mut String, text: &str) {
    block.push_str(text);
    if !text.ends_with('\n') {
        block.push('\n');
    }
}

fn push_omitted(block: &mut String, omitted: &[&Found]) {
    if omitted.is_empty() {
        return;
    }
    let size: u64 = omitted.iter().map(|file| file.size).sum();
    let count = omitted.len();
    block.push_str(&format!("\n=== Files not shown ({count} files, {}) ===\n", human(size)));
    for file in omitted.iter().take(NAMED_OMISSIONS) {
        block.push_str(&format!("- {} ({})\n", file.path, human(file.size)));
    }
    if count > NAMED_OMISSIONS {
        block.push_str(&format!("[... {} more files]\n", count - NAMED_OMISSIONS));
    }
}

fn human(bytes: u64) -> String {
    if bytes < 1024 { format!("{bytes} bytes") } else { format!("{} KiB", bytes / 1024) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn how(mode: InjectMode) -> Inject {
        Inject { mode, instruction: None, position: Position::Prepend }
    }

    fn file(path: &str, required: bool, text: &str) -> Found {
        let head = Some(text.as_bytes()[..text.len().min(CAP as usize)].to_vec());
        Found { path: path.into(), required, size: text.len() as u64, head }
    }

    #[test]
    fn a_list_has_groups_only_when_both_kinds_exist() {
        let one = [file("a.md", true, ""), file("b.md", true, "")];
        let (text, cut) = inject("Do it.\n", &how(InjectMode::List), &one);
        assert_eq!(
            text,
            "The following files are required inputs for this task:\n- a.md\n- b.md\n\nDo it.\n"
        );
        assert_eq!(cut, None);
        let both = [file("a.md", true, ""), file("b.md", false, "")];
        let custom = Inject {
            instruction: Some("Review:".into()),
            position: Position::Append,
            ..how(InjectMode::List)
        };
        assert_eq!(
            inject("Do it.", &custom, &both).0,
            "Do it.\n\nReview:\nRequired:\n- a.md\nOptional (if available):\n- b.md\n"
        );
    }

    #[test]
    fn content_carries_headers() {
        let files = [file("a.md", true, "one\n"), file("b.md", false, "two")];
        let (text, _) = inject("Go.", &how(InjectMode::Content), &files);
        assert_eq!(
            text,
            "The following file contents are provided for context:\n\n\
             === File: a.md (4 bytes) ===\none\n\n=== File: b.md (3 bytes) ===\ntwo\n\nGo."
        );
    }

    #[test]
    fn content_stops_at_the_cap_and_says_so() {
        let big = "x".repeat(200 * 1024);
        let files = [file("a", true, &big), file("b", true, &big), file("c", true, &big)];
        let (text, cut) = inject("Go.", &how(InjectMode::Content), &files);
        let wanted = Cut {
            total_size: 600 * 1024,
            shown_size: CAP,
            files_shown: 2,
            files_truncated: 1,
            files_omitted: 1,
        };
        assert_eq!(cut, Some(wanted));
        assert!(text.contains("=== File: b (57344/204800 bytes) ==="));
        assert!(text.contains("[... truncated: 56 KiB of 200 KiB shown]"));
        assert!(text.contains("=== Files not shown (1 files, 200 KiB) ===\n- c (200 KiB)"));
        assert!(text.ends_with("\n\nGo."));
    }

    #[test]
    fn a_list_stops_at_the_cap_and_says_so() {
        let files: Vec<_> =
            (0..3000).map(|n| file(&format!("{n:05}{}", "p".repeat(200)), true, "")).collect();
        let (text, cut) = inject("Go.", &how(InjectMode::List), &files);
        let cut = cut.unwrap();
        assert_eq!(cut.files_shown + cut.files_omitted, 3000);
        assert!(cut.shown_size <= CAP && cut.shown_size > CAP - 300);
        assert!(text.contains(&format!("[... {} more files truncated", cut.files_omitted)));
    }
}
