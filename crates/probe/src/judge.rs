//! The rules by which responses become findings. Nothing here does I/O.
//!
//! A retry that has the first response proves nothing by itself: two executions may have equal responses. So the same
//! body is sent with another key, and its response is the control: if it differs from the first one, a repeated
//! execution would have shown.

use std::collections::BTreeSet;

use super::finding::{Differences, Finding};
use super::response::{ProbedResponse, ProbedResult, StatusMeaning, compare};

/// The first response, and what another execution's looks like beside it.
pub(crate) struct Baseline<'a> {
    pub(crate) first: &'a ProbedResponse,
    /// The same body with another key.
    pub(crate) control: &'a ProbedResult,
    /// JSON Pointers of values that do not count.
    pub(crate) ignored: &'a [String],
}

/// Judges a response by a rule. A request without a response says nothing.
fn judge(result: &ProbedResult, rule: impl FnOnce(&ProbedResponse) -> Finding) -> Finding {
    result.as_ref().map_or_else(|reason| Finding::no_response(reason), rule)
}

pub(crate) fn judge_first(first: &ProbedResult) -> Finding {
    judge(first, |first| match first.meaning() {
        StatusMeaning::Executed => Finding::EXECUTED,
        StatusMeaning::Refused | StatusMeaning::TurnedAway | StatusMeaning::Unclear => Finding::NOT_EXECUTED,
    })
}

impl Baseline<'_> {
    fn differences(&self, response: &ProbedResponse) -> Differences {
        compare(self.first, response, self.ignored)
    }

    fn is_marked(&self, response: &ProbedResponse) -> bool {
        response.replay_marker(self.first).is_some()
    }

    /// The parts in which another execution's response differs from the first one; none where that is not known.
    fn differences_of_executions(&self) -> Differences {
        match self.control {
            Ok(control) if matches!(control.meaning(), StatusMeaning::Executed | StatusMeaning::Refused) => {
                self.differences(control)
            }
            _ => Differences::new(),
        }
    }

    /// Judges the control. The retry shows whether the server marks its replays.
    pub(crate) fn judge_other_key(&self, retry: &ProbedResult) -> Finding {
        judge(self.control, |control| {
            let differences = self.differences(control);
            match control.meaning() {
                StatusMeaning::Executed if self.is_marked(control) => Finding::REPLAYED_FOR_OTHER_KEY,
                StatusMeaning::Executed if !differences.is_empty() => {
                    Finding::EXECUTED_ANEW.with_differences(differences)
                }
                StatusMeaning::Executed if retry.as_ref().is_ok_and(|retry| self.is_marked(retry)) => {
                    Finding::EXECUTED_ANEW_UNMARKED
                }
                StatusMeaning::Executed => Finding::LOOKS_THE_SAME,
                StatusMeaning::Refused => Finding::REFUSED_FOR_OTHER_KEY,
                StatusMeaning::TurnedAway | StatusMeaning::Unclear => Finding::UNCLEAR,
            }
        })
    }

    pub(crate) fn judge_retry(&self, retry: &ProbedResult) -> Finding {
        judge(retry, |retry| {
            match retry.meaning() {
                StatusMeaning::Executed => {}
                StatusMeaning::Refused => return Finding::RETRY_REFUSED,
                StatusMeaning::TurnedAway | StatusMeaning::Unclear => return Finding::UNCLEAR,
            }
            let (differences, executions_differ) = (self.differences(retry), self.differences_of_executions());
            let is_marked = self.is_marked(retry);
            match differences.is_empty() {
                true if is_marked || !executions_differ.is_empty() => Finding::REPLAYED,
                true => Finding::REPLAYED_OR_EXECUTED,
                // Something that every execution changes has stayed.
                false if is_marked || !executions_differ.is_subset(&differences) => {
                    Finding::CHANGED.with_differences(differences)
                }
                false => Finding::EXECUTED_AGAIN.with_differences(differences),
            }
        })
    }

    pub(crate) fn judge_duplicates(&self, duplicates: &[ProbedResult]) -> Finding {
        let responses: Vec<_> = duplicates.iter().flatten().collect();
        let with = |meaning: StatusMeaning| responses.iter().copied().filter(move |one| one.meaning() == meaning);
        let unmarked: Vec<_> = with(StatusMeaning::Executed).filter(|response| !self.is_marked(response)).collect();
        let failed = duplicates.iter().find_map(|duplicate| duplicate.as_ref().err());
        let executions = self.count_executions(&unmarked);
        match (executions, failed) {
            (2.., _) => return Finding::executed_many_times(executions),
            (_, Some(reason)) => return Finding::no_response(reason),
            _ if with(StatusMeaning::Unclear).next().is_some() => return Finding::UNCLEAR,
            (0, None) if with(StatusMeaning::Executed).next().is_some() => return Finding::EXECUTED_ONCE_OR_MORE,
            (0, None) if with(StatusMeaning::Refused).next().is_some() => return Finding::NEVER_EXECUTED,
            (0, None) => return Finding::UNCLEAR,
            (1, None) => {}
        }
        let changed: Differences =
            unmarked.iter().flat_map(|response| compare(unmarked[0], response, self.ignored)).collect();
        match changed.is_empty() {
            false => Finding::CHANGED.with_differences(changed),
            true if unmarked.len() == 1 || !self.differences_of_executions().is_empty() => Finding::EXECUTED_ONCE,
            true => Finding::EXECUTED_ONCE_OR_MORE,
        }
    }

    /// The number of executions that responses are certainly of: they differ in all parts in which executions differ.
    fn count_executions(&self, responses: &[&ProbedResponse]) -> usize {
        let executions_differ = self.differences_of_executions();
        let mut counted: Vec<&ProbedResponse> = Vec::new();
        for response in responses {
            let is_another = |other: &&ProbedResponse| {
                let differences = compare(other, response, self.ignored);
                !differences.is_empty() && executions_differ.is_subset(&differences)
            };
            if counted.iter().all(is_another) {
                counted.push(response);
            }
        }
        counted.len()
    }

    /// Judges another body with the first key. `with_own_key` is the response to the same body with a fresh key, which
    /// was sent if the other was refused: servers refuse bodies for many reasons, with 400 and 422 too.
    pub(crate) fn judge_other_body(&self, reuse: &ProbedResult, with_own_key: Option<&ProbedResult>) -> Finding {
        judge(reuse, |reuse| match (reuse.meaning(), with_own_key) {
            (StatusMeaning::Executed, _) => {
                let differences = self.differences(reuse);
                let would_show = self.is_marked(reuse) || !self.differences_of_executions().is_empty();
                match differences.is_empty() {
                    true if would_show => Finding::REUSE_REPLAYED,
                    true => Finding::REUSE_ACCEPTED,
                    false => Finding::REUSE_EXECUTED.with_differences(differences),
                }
            }
            (StatusMeaning::Refused, Some(own)) => judge(own, |own| match own.meaning() {
                StatusMeaning::Executed => Finding::REUSE_REFUSED,
                StatusMeaning::Refused => Finding::BODY_REFUSED,
                StatusMeaning::TurnedAway | StatusMeaning::Unclear => Finding::UNCLEAR,
            }),
            (StatusMeaning::Refused, None) | (StatusMeaning::TurnedAway | StatusMeaning::Unclear, _) => {
                Finding::UNCLEAR
            }
        })
    }
}

/// Whether a request was refused for what it is.
pub(crate) fn is_refused(result: &ProbedResult) -> bool {
    result.as_ref().is_ok_and(|response| response.meaning() == StatusMeaning::Refused)
}

pub(crate) fn judge_no_key(response: &ProbedResult) -> Finding {
    judge(response, |response| match response.meaning() {
        StatusMeaning::Executed => Finding::KEY_OPTIONAL,
        StatusMeaning::Refused => Finding::KEY_REQUIRED,
        StatusMeaning::TurnedAway | StatusMeaning::Unclear => Finding::UNCLEAR,
    })
}

/// Judges by all responses whether refusals name their documentation.
pub(crate) fn judge_policy<'a>(responses: impl Iterator<Item = &'a ProbedResponse>) -> Finding {
    let refusals = responses.filter(|response| response.meaning() == StatusMeaning::Refused);
    let urls: BTreeSet<_> = refusals.flat_map(ProbedResponse::documentation).collect();
    if urls.is_empty() { Finding::UNDOCUMENTED } else { Finding::documented(&urls) }
}

#[cfg(test)]
mod tests;
