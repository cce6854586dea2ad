//! Converts measurements into findings.

use std::io::{self, ErrorKind};

use super::Finding;
use super::probe::{Absence, Probe, Race, Spread};
use super::talk::Reads;

/// A slower sync causes a warning; each task needs several.
const SLOW_SYNC_MS: f64 = 100.0;
/// A difference of clocks that users notice.
const CLOCKS_APART_MS: i64 = 2_000;

/// Returns the findings for the measurements.
pub(super) fn findings(probe: &Probe, network: bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    findings.extend(probe.race.as_ref().map(race));
    findings.extend(probe.visibility.map(|spread| visibility(&spread, probe, network)));
    findings.extend(probe.replace.map(replace));
    findings.extend(probe.sync.map(|spread| sync(&spread, probe.directory_sync)));
    findings.push(match (probe.symbolic_links, probe.hard_links) {
        (true, true) => Finding::ok("links", "hard and symbolic links can be made"),
        (true, false) => Finding::ok("links", "no hard links can be made; none are needed"),
        (false, _) => Finding::warning(
            "links",
            "no symbolic links can be made: `latest` will not lead to the newest run",
            "use run ids in place of `latest`",
        ),
    });
    findings.extend(probe.clock_offset_ms.map(clock));
    findings.push(if probe.notices {
        Finding::ok("notices", "the kernel tells of changes that the other process makes")
    } else {
        let text =
            "the kernel does not tell of the other process's changes: work is found by polling";
        Finding::ok("notices", text)
    });
    if let Some(shared) = probe.locks {
        findings.push(if shared {
            Finding::ok("locks", "a lock of one process holds for the other")
        } else {
            let text = "a lock of one process does not hold for the other";
            Finding::warning("locks", text, "drive each run from one machine only")
        });
    }
    // Two processes of one machine share its cache, so they cannot observe this.
    findings.extend(probe.absence.filter(|_| probe.remote).map(absence));
    findings
}

fn absence(Absence { lag_ms, remembered, listed }: Absence) -> Finding {
    const NAME: &str = "absence";
    if !listed {
        let text = "a listing did not show a file that the other machine had made";
        return Finding::wrong(NAME, text, "mount it without a cache of listings");
    }
    if !remembered {
        let text = format!(
            "a name that was looked up before the other machine made it was seen within \
             {lag_ms:.0} ms"
        );
        return Finding::ok(NAME, text);
    }
    let text = format!(
        "a name that was looked up before the other machine made it was still absent after \
         {lag_ms:.0} ms (negative cache), and a listing showed it at once: the queue confirms \
         absence by listing directories"
    );
    Finding::ok(NAME, text)
}

fn race(measured: &Race) -> Finding {
    let Race { files, won_here, won_there, broken, false_errors, odd_errors } = *measured;
    if broken > 0 {
        let text = format!(
            "of {files} files that two processes renamed at once, {broken} had no winner or two"
        );
        return Finding::wrong("claims", text, "use another volume: two workers would do one task");
    }
    if files == 0 {
        let text = "the volume is so slow that no race for a file came about";
        return Finding::warning("claims", text, "use a quicker volume");
    }
    let text = format!(
        "{files} files were renamed by two processes at once: each had one winner \
         ({won_here} here, {won_there} there)"
    );
    if false_errors + odd_errors > 0 {
        let text = format!(
            "{text}; but {false_errors} winners were told to have lost, and {odd_errors} losers \
             were told something else than that the file was gone"
        );
        let cure = "the queue looks for itself what happened; look whether the server is well";
        return Finding::warning("claims", text, cure);
    }
    Finding::ok("claims", text)
}

fn visibility(spread: &Spread, probe: &Probe, network: bool) -> Finding {
    let Spread { count, p50_ms, p99_ms, .. } = *spread;
    let machines = if probe.remote { "on another machine" } else { "on this machine" };
    let mut text = format!(
        "a process {machines} sees a rename and answers it within {p50_ms:.1} ms (half of {count} \
         times), {p99_ms:.1} ms (99 of 100)"
    );
    if network && !probe.remote {
        text.push_str("; for two machines give `--remote`");
    }
    Finding::ok("visibility", text)
}

fn replace(Reads { reads, torn, missing }: Reads) -> Finding {
    if torn > 0 {
        let text =
            format!("a file replaced by renaming was seen in part in {torn} of {reads} reads");
        return Finding::wrong(
            "replacing",
            text,
            "use another volume: state could be read in part",
        );
    }
    if missing > 0 {
        let text = format!(
            "a file that was replaced seemed not to be there in {missing} of {reads} reads"
        );
        let cure = "who reads the state of a run while it goes on must look again";
        return Finding::warning("replacing", text, cure);
    }
    let text = format!("a file replaced by renaming was whole in each of {reads} reads");
    Finding::ok("replacing", text)
}

fn sync(spread: &Spread, directory: bool) -> Finding {
    let Spread { p50_ms, p99_ms, .. } = *spread;
    let text = format!("a sync takes {p50_ms:.1} ms (half of them), {p99_ms:.1} ms (99 of 100)");
    if !directory {
        let text =
            format!("{text}; but a directory cannot be synced: a power cut may lose new names");
        return Finding::warning(
            "syncs",
            text,
            "use another volume, or do not count on power cuts",
        );
    }
    if p50_ms > SLOW_SYNC_MS {
        return Finding::warning("syncs", text, "each task takes several: use a quicker volume");
    }
    Finding::ok("syncs", text)
}

fn clock(offset_ms: i64) -> Finding {
    let side = if offset_ms < 0 { "behind" } else { "ahead of" };
    let text = format!("the volume's clock is {} ms {side} this machine's", offset_ms.abs());
    if offset_ms.abs() > CLOCKS_APART_MS {
        let cure = "set both by NTP; the queue compares no clocks, but people do";
        return Finding::warning("clocks", text, cure);
    }
    Finding::ok("clocks", text)
}

pub(super) fn not_met(error: &io::Error, remote: bool) -> Finding {
    let cure = match (error.kind(), remote) {
        (ErrorKind::Interrupted, _) => "start it again",
        (ErrorKind::TimedOut, true) => "is it started there, and does its mount keep listings?",
        (ErrorKind::TimedOut, false) => "use a quicker volume, or mount it without caches",
        _ => "look whether the volume, and this program on it, are well",
    };
    Finding::wrong("second process", error.to_string(), cure)
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    #[test]
    fn a_claim_that_two_won_is_wrong_and_a_false_word_about_it_is_doubtful() {
        let good = Race { files: 3, won_here: 1, won_there: 2, ..Race::default() };
        let verdict = |measured: Race| race(&measured).verdict;
        assert_eq!(verdict(good), Verdict::Ok);
        assert_eq!(verdict(Race { broken: 1, ..good }), Verdict::Wrong);
        assert_eq!(verdict(Race { false_errors: 1, ..good }), Verdict::Warning);
        assert_eq!(verdict(Race { odd_errors: 1, ..good }), Verdict::Warning);
        assert_eq!(verdict(Race::default()), Verdict::Warning);
    }

    #[test]
    fn absence_is_wrong_only_if_listings_do_not_help() {
        let said = |remembered, listed| absence(Absence { lag_ms: 1500.0, remembered, listed });
        assert_eq!(said(true, false).verdict, Verdict::Wrong);
        assert_eq!(said(false, true).verdict, Verdict::Ok);
        let cached = said(true, true);
        assert!(cached.verdict == Verdict::Ok && cached.text.contains("negative cache"));
    }

    #[test]
    fn half_a_file_is_wrong_and_none_is_doubtful() {
        let verdict = |torn, missing| replace(Reads { reads: 9, torn, missing }).verdict;
        assert_eq!(verdict(0, 0), Verdict::Ok);
        assert_eq!(verdict(1, 0), Verdict::Wrong);
        assert_eq!(verdict(0, 1), Verdict::Warning);
    }

    #[test]
    fn slow_syncs_and_clocks_apart_are_told() {
        let spread = |p50_ms| Spread { count: 1, p50_ms, p99_ms: p50_ms, max_ms: p50_ms };
        assert_eq!(sync(&spread(1.0), true).verdict, Verdict::Ok);
        assert_eq!(sync(&spread(1.0), false).verdict, Verdict::Warning);
        assert_eq!(sync(&spread(200.0), true).verdict, Verdict::Warning);
        assert_eq!(clock(-1999).verdict, Verdict::Ok);
        assert_eq!(clock(-3_600_000).verdict, Verdict::Warning);
    }
}
