//! What a route says about outcomes, as values.

use http::StatusCode;

/// What a response's status says about its attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Treat the attempt as not executed: `retryable`.
    Release,
    /// Store the response: `completed`.
    Store,
    /// Nobody knows: `unknown`.
    Unknown,
}

/// What a retry of an unknown outcome gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnUnknown {
    /// 409, until somebody who knows has said how it ended.
    Hold,
    /// The next attempt, at once. It may overlap the one it follows.
    Retry,
    /// The next attempt, once the one before cannot be running any more.
    RetryWhenQuiet,
}

/// An entry of a status list: one code or a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StatusEntry {
    /// The hundreds digit of `2xx`.
    Class(u16),
    /// One code.
    Code(u16),
}

impl StatusEntry {
    /// `201` or `2xx`; only final statuses, 200 to 599, can be listed.
    pub fn parse(text: &str) -> Option<Self> {
        if let Some(class) = text.strip_suffix("xx") {
            return class.parse().ok().filter(|class| (2..=5).contains(class)).map(Self::Class);
        }
        let three_digits = text.len() == 3 && text.bytes().all(|byte| byte.is_ascii_digit());
        let code = text.parse().ok().filter(|code| three_digits && (200..600).contains(code))?;
        Some(Self::Code(code))
    }
}

/// A list of statuses, and whether the route's own file wrote it.
#[derive(Clone, Debug)]
pub struct StatusList {
    /// What a status in the list means.
    pub verdict: Verdict,
    /// Its entries.
    pub entries: Vec<StatusEntry>,
    /// A written list beats a default one.
    pub written: bool,
}

/// Every status's verdict, worked out once.
#[derive(Clone)]
pub struct StatusTable {
    verdicts: Box<[Verdict; 400]>,
    /// Codes that stand in a list by themselves, for which `Retry-After` changes nothing.
    exact: Box<[bool; 400]>,
}

impl StatusTable {
    /// Works out the table: a list that the route writes beats a default one, an exact code beats a class, and what
    /// stands in no list is unknown.
    ///
    /// # Errors
    /// The entry that stands in two written lists.
    pub fn new(lists: &[StatusList]) -> Result<Self, StatusEntry> {
        let mut seen = std::collections::HashSet::new();
        for list in lists.iter().filter(|list| list.written) {
            let entries: std::collections::HashSet<_> = list.entries.iter().collect();
            if let Some(twice) = entries.into_iter().find(|entry| !seen.insert(**entry)) {
                return Err(*twice);
            }
        }
        let mut table = Self { verdicts: Box::new([Verdict::Unknown; 400]), exact: Box::new([false; 400]) };
        // From the weakest to the strongest, each overwriting those before.
        for (written, exact) in [(false, false), (false, true), (true, false), (true, true)] {
            for list in lists.iter().filter(|list| list.written == written) {
                for entry in &list.entries {
                    let codes = match entry {
                        StatusEntry::Class(class) if !exact => (class * 100)..(class * 100 + 100),
                        StatusEntry::Code(code) if exact => *code..code + 1,
                        StatusEntry::Class(_) | StatusEntry::Code(_) => continue,
                    };
                    for code in codes {
                        table.verdicts[usize::from(code - 200)] = list.verdict;
                        table.exact[usize::from(code - 200)] = exact;
                    }
                }
            }
        }
        Ok(table)
    }

    /// What a response means. A 4xx that says when to come back was not carried out, whatever its class says, unless
    /// its code is listed by itself.
    pub fn judge(&self, status: StatusCode, has_retry_after: bool) -> Verdict {
        let Some(index) = usize::from(status.as_u16()).checked_sub(200).filter(|index| *index < 400) else {
            return Verdict::Unknown;
        };
        if status.is_client_error() && has_retry_after && !self.exact[index] {
            return Verdict::Release;
        }
        self.verdicts[index]
    }
}

impl std::fmt::Debug for StatusTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("StatusTable(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(verdict: Verdict, entries: &[&str], written: bool) -> StatusList {
        let entries = entries.iter().map(|entry| StatusEntry::parse(entry).unwrap()).collect();
        StatusList { verdict, entries, written }
    }

    fn judge(table: &StatusTable, code: u16) -> Verdict {
        table.judge(StatusCode::from_u16(code).unwrap(), false)
    }

    #[test]
    fn a_written_list_beats_a_default_one_and_an_exact_code_beats_a_class() {
        let table = StatusTable::new(&[
            list(Verdict::Store, &["2xx", "4xx", "503"], false),
            list(Verdict::Release, &["429", "5xx"], false),
            list(Verdict::Unknown, &["5xx", "404"], true),
            list(Verdict::Store, &["500"], true),
        ])
        .unwrap();
        for (code, verdict) in [
            (200, Verdict::Store),
            (302, Verdict::Unknown),
            (404, Verdict::Unknown),
            (410, Verdict::Store),
            (429, Verdict::Release),
            (500, Verdict::Store),
            (503, Verdict::Unknown),
            (600, Verdict::Unknown),
            (101, Verdict::Unknown),
        ] {
            assert_eq!(judge(&table, code), verdict, "{code}");
        }
    }

    #[test]
    fn the_same_entry_in_two_written_lists_is_an_error() {
        let lists = [list(Verdict::Store, &["404", "404"], true), list(Verdict::Release, &["5xx", "404"], true)];
        assert_eq!(StatusTable::new(&lists).unwrap_err(), StatusEntry::Code(404));
    }

    #[test]
    fn a_4xx_with_retry_after_is_released_unless_its_code_is_listed() {
        let table = StatusTable::new(&[list(Verdict::Store, &["2xx", "4xx", "422"], true)]).unwrap();
        let with = |code| table.judge(StatusCode::from_u16(code).unwrap(), true);
        assert_eq!(with(409), Verdict::Release);
        assert_eq!(with(422), Verdict::Store);
        assert_eq!(with(201), Verdict::Store);
    }

    #[test]
    fn only_final_statuses_can_be_listed() {
        for text in ["1xx", "6xx", "xx", "20", "2000", "199", "600", "+20", "2XX", ""] {
            assert_eq!(StatusEntry::parse(text), None, "{text:?}");
        }
    }
}
