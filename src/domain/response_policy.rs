//! A route's policy on outcomes: verdicts on statuses, and retries of unknown outcomes.

use http::StatusCode;

/// The verdict on an attempt by its response's status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseVerdict {
    /// Treat the attempt as not executed: `retryable`.
    Release,
    /// Store the response: `completed`.
    Store,
    /// The outcome is not known: `unknown`.
    Unknown,
}

/// The response to a retry of an unknown outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnUnknown {
    /// 409, until the service or an operator has reported the outcome.
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
    /// Parses `201` or `2xx`; only final statuses, 200 to 599, can be listed.
    pub fn parse(text: &str) -> Option<Self> {
        if let Some(class) = text.strip_suffix("xx") {
            return class.parse().ok().filter(|class| (2..=5).contains(class)).map(Self::Class);
        }
        let three_digits = text.len() == 3 && text.bytes().all(|byte| byte.is_ascii_digit());
        let code = text.parse().ok().filter(|code| three_digits && (200..600).contains(code))?;
        Some(Self::Code(code))
    }
}

/// A list of statuses with one verdict.
#[derive(Clone, Debug)]
pub struct StatusList {
    /// The verdict on the statuses in the list.
    pub verdict: ResponseVerdict,
    /// Its entries.
    pub entries: Vec<StatusEntry>,
    /// Whether the list is written in the file: a written list overrides a default one.
    pub written: bool,
}

/// The verdict on every status, computed once.
#[derive(Clone)]
pub struct StatusTable {
    verdicts: Box<[ResponseVerdict; 400]>,
    /// The codes that are listed by themselves, for which `Retry-After` changes nothing.
    exact: Box<[bool; 400]>,
}

impl StatusTable {
    /// Computes the table: a written list overrides a default one, an exact code overrides a class, and a status in no
    /// list is unknown.
    ///
    /// # Errors
    /// The entry that is in two written lists.
    pub fn new(lists: &[StatusList]) -> Result<Self, StatusEntry> {
        let mut listed = std::collections::HashSet::new();
        for list in lists.iter().filter(|list| list.written) {
            let entries: std::collections::HashSet<_> = list.entries.iter().collect();
            if let Some(twice) = entries.into_iter().find(|entry| !listed.insert(**entry)) {
                return Err(*twice);
            }
        }
        let mut table = Self { verdicts: Box::new([ResponseVerdict::Unknown; 400]), exact: Box::new([false; 400]) };
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

    /// The verdict on a response. A 4xx with `Retry-After` was not executed, whatever the verdict on its class, unless
    /// its code is listed by itself.
    pub fn verdict_on(&self, status: StatusCode, has_retry_after: bool) -> ResponseVerdict {
        let Some(index) = usize::from(status.as_u16()).checked_sub(200).filter(|index| *index < 400) else {
            return ResponseVerdict::Unknown;
        };
        if status.is_client_error() && has_retry_after && !self.exact[index] {
            return ResponseVerdict::Release;
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

    fn list(verdict: ResponseVerdict, entries: &[&str], written: bool) -> StatusList {
        let entries = entries.iter().map(|entry| StatusEntry::parse(entry).unwrap()).collect();
        StatusList { verdict, entries, written }
    }

    fn judge(table: &StatusTable, code: u16) -> ResponseVerdict {
        table.verdict_on(StatusCode::from_u16(code).unwrap(), false)
    }

    #[test]
    fn a_written_list_beats_a_default_one_and_an_exact_code_beats_a_class() {
        let table = StatusTable::new(&[
            list(ResponseVerdict::Store, &["2xx", "4xx", "503"], false),
            list(ResponseVerdict::Release, &["429", "5xx"], false),
            list(ResponseVerdict::Unknown, &["5xx", "404"], true),
            list(ResponseVerdict::Store, &["500"], true),
        ])
        .unwrap();
        for (code, verdict) in [
            (200, ResponseVerdict::Store),
            (302, ResponseVerdict::Unknown),
            (404, ResponseVerdict::Unknown),
            (410, ResponseVerdict::Store),
            (429, ResponseVerdict::Release),
            (500, ResponseVerdict::Store),
            (503, ResponseVerdict::Unknown),
            (600, ResponseVerdict::Unknown),
            (101, ResponseVerdict::Unknown),
        ] {
            assert_eq!(judge(&table, code), verdict, "{code}");
        }
    }

    #[test]
    fn the_same_entry_in_two_written_lists_is_an_error() {
        let lists = [
            list(ResponseVerdict::Store, &["404", "404"], true),
            list(ResponseVerdict::Release, &["5xx", "404"], true),
        ];
        assert_eq!(StatusTable::new(&lists).unwrap_err(), StatusEntry::Code(404));
    }

    #[test]
    fn a_4xx_with_retry_after_is_released_unless_its_code_is_listed() {
        let table = StatusTable::new(&[list(ResponseVerdict::Store, &["2xx", "4xx", "422"], true)]).unwrap();
        let with = |code| table.verdict_on(StatusCode::from_u16(code).unwrap(), true);
        assert_eq!(with(409), ResponseVerdict::Release);
        assert_eq!(with(422), ResponseVerdict::Store);
        assert_eq!(with(201), ResponseVerdict::Store);
    }

    #[test]
    fn only_final_statuses_can_be_listed() {
        for text in ["1xx", "6xx", "xx", "20", "2000", "199", "600", "+20", "2XX", ""] {
            assert_eq!(StatusEntry::parse(text), None, "{text:?}");
        }
    }
}
