//! Changes for which two persons are needed (`admin.four_eyes`): one proposes, and another one confirms within a day.
//!
//! A proposal is the newest entry of the audit log about its key, and names the attempt that its proposer saw. So anything that
//! happens to the key ends it: a new attempt, a decision, or another proposal. A confirmation is the change itself, which takes
//! effect only for that attempt in that state; its entry names the proposer, in the same commit.

use std::time::{Duration, SystemTime};

use serde::Serialize;

use super::problem::{ApiProblem, ProblemCode};
use super::{KeyAdmin, subject_of};
use oncegate_domain::execution_risk::FourEyesAction;
use oncegate_domain::ids::Token;
use oncegate_domain::rfc3339;
use oncegate_store::admin::{AuditEntry, KeyEntry, OperatorAction, OperatorDecision, proposal_mark};
use oncegate_store::{ListAuditEntriesParams, StoreError};

/// The time for which a proposal counts: until the next shift, and not until everybody has forgotten its reason.
pub const PROPOSAL_AGE_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// A proposal that another person may confirm.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KeyProposal {
    pub action: &'static str,
    /// The person, as in the audit log.
    pub actor: String,
    #[serde(serialize_with = "rfc3339::serialize")]
    pub at: SystemTime,
    /// The time from which it does not count any more.
    #[serde(serialize_with = "rfc3339::serialize")]
    pub until: SystemTime,
}

impl KeyProposal {
    /// Reads the newest entry about a key; `None` if it is no proposal, or is one of another attempt, or too old.
    pub fn of_entry(newest: &AuditEntry, token: &Token, now: SystemTime) -> Option<Self> {
        let action = FourEyesAction::ALL.into_iter().find(|action| action.proposal() == newest.action)?;
        // The grounds may stand before it; what the proposer has typed stands behind it.
        let mark = proposal_mark(token);
        let is_of_attempt =
            newest.note.as_deref().is_some_and(|note| note.split("; ").take(2).any(|part| part == mark));
        let until = newest.at + PROPOSAL_AGE_MAX;
        let proposal = Self { action: action.name(), actor: newest.actor.clone(), at: newest.at, until };
        (is_of_attempt && now < until && subject_of(&newest.actor).is_some()).then_some(proposal)
    }
}

impl KeyAdmin<'_> {
    /// Whether two persons are needed for a change.
    pub fn needs_two_persons(&self, change: &OperatorAction) -> bool {
        FourEyesAction::of_kind(change.kind()).is_some_and(|action| self.config.admin.four_eyes.contains(&action))
    }

    /// The proposal about a key that counts now.
    pub(super) async fn find_proposal(&self, entry: &KeyEntry) -> Result<Option<KeyProposal>, StoreError> {
        let params = ListAuditEntriesParams { service: self.service(), id: Some(entry.id), before: None, limit: 1 };
        let newest = self.store.list_audit_entries(params).await?;
        Ok(newest.first().and_then(|newest| KeyProposal::of_entry(newest, &entry.token, entry.now)))
    }

    /// The decision that an operator's wish becomes: a proposal, or the change that another person has proposed. A change that one
    /// person decides stays as it is.
    ///
    /// # Errors
    /// Nobody has signed in as a person, or the same person has proposed it.
    pub(super) async fn under_four_eyes(
        &self,
        entry: &KeyEntry,
        decision: OperatorDecision,
    ) -> Result<OperatorDecision, ApiProblem> {
        let Some(action) = FourEyesAction::of_kind(decision.change.kind()) else { return Ok(decision) };
        if !self.needs_two_persons(&decision.change) {
            return Ok(decision);
        }
        let subject = subject_of(&decision.actor).ok_or_else(|| self.needs_persons(action.name()))?.to_owned();
        match self.find_proposal(entry).await? {
            Some(proposal) if proposal.action == action.name() => {
                if subject_of(&proposal.actor) == Some(&*subject) {
                    let detail =
                        format!("you have proposed this {} yourself: another person must confirm it", action.name());
                    return Err(ApiProblem::new(ProblemCode::FourEyes, detail));
                }
                let confirms = format!("confirms the proposal of {}", proposal.actor);
                let note = [Some(confirms), decision.note].into_iter().flatten().collect::<Vec<_>>().join("; ");
                Ok(OperatorDecision { note: Some(note), ..decision })
            }
            Some(_) | None => Ok(OperatorDecision { change: OperatorAction::Propose(action), ..decision }),
        }
    }

    /// Two persons are needed, and the request is not by one who can be told from others.
    fn needs_persons(&self, action: &str) -> ApiProblem {
        let place = self.config.admin.oidc.as_ref().map_or(String::new(), |oidc| format!(" at {}", oidc.url));
        let detail = format!(
            "a {action} needs two persons here (`admin.four_eyes`), and a token names nobody: sign in to the page{place} as a \
             person, propose it there, and have another person confirm it there"
        );
        ApiProblem::new(ProblemCode::FourEyes, detail)
    }

    /// Several keys at once cannot be proposed: the second person would confirm what neither has looked at.
    pub(super) fn refuse_bulk_change(&self, change: &OperatorAction) -> Result<(), ApiProblem> {
        if !self.needs_two_persons(change) {
            return Ok(());
        }
        let detail = format!(
            "a {} needs two persons here (`admin.four_eyes`), who look at each key: propose it on the page of the key",
            change.action()
        );
        Err(ApiProblem::new(ProblemCode::FourEyes, detail))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oncegate_domain::ids::RecordId;

    #[test]
    fn a_proposal_counts_for_a_day_and_for_the_attempt_that_its_proposer_saw() {
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        let (token, other) = (Token::from_random([1; 16]), Token::from_random([2; 16]));
        let (mark, mark_of_other) = (proposal_mark(&token), proposal_mark(&other));
        let person = "ann (signed in as 7) at 10.0.0.7";
        for (action, actor, note, age, counts) in [
            ("propose purge", person, Some(mark.clone()), Duration::ZERO, true),
            ("propose release", person, Some(format!("accept_risk; {mark}; ticket")), Duration::ZERO, true),
            ("propose purge", person, Some(mark.clone()), PROPOSAL_AGE_MAX - Duration::from_secs(1), true),
            ("propose purge", person, Some(mark.clone()), PROPOSAL_AGE_MAX, false),
            ("purge", person, Some(mark.clone()), Duration::ZERO, false),
            ("propose purge", "ann (claimed) at 10.0.0.7", Some(mark.clone()), Duration::ZERO, false),
            ("propose purge", person, None, Duration::ZERO, false),
            ("propose purge", person, Some(mark_of_other.clone()), Duration::ZERO, false),
            ("propose purge", person, Some(format!("accept_risk; {mark_of_other}; {mark}")), Duration::ZERO, false),
        ] {
            let (before, after) = ("unknown".to_owned(), "unknown".to_owned());
            let id = RecordId::from_stored(&[1; 32]).unwrap();
            let entry = AuditEntry { seq: 1, at, actor: actor.into(), action: action.into(), id, before, after, note };
            assert_eq!(KeyProposal::of_entry(&entry, &token, at + age).is_some(), counts, "{entry:?} {age:?}");
        }
    }
}
