//! Changes for which two persons are needed (`admin.four_eyes`): one proposes, and another one confirms within a day.
//!
//! A proposal is the newest entry of the audit log about its key, and names the attempt and the state that its proposer
//! saw. So anything that happens to the key ends it: a new attempt, another state, a decision, or another proposal. A
//! confirmation is the change itself, which takes effect only for that attempt in that state; its entry names the
//! proposer, in the same commit.
//!
//! Persons are told apart by the issuer's own names of them. Another issuer names the same person differently, so only
//! persons of the configured one count.

use std::time::{Duration, SystemTime};

use schemars::JsonSchema;
use serde::Serialize;

use super::KeyAdmin;
use super::actors::{issuer_digest, person_of};
use super::problem::{ApiProblem, ProblemCode};
use oncegate_domain::execution_risk::{ActionKind, FourEyesAction};
use oncegate_domain::ids::Token;
use oncegate_domain::rfc3339;
use oncegate_domain::state::StateKind;
use oncegate_store::admin::{AuditEntry, KeyEntry, OperatorAction, OperatorDecision, names_attempt};
use oncegate_store::{ListAuditEntriesParams, StoreError};

/// The time for which a proposal counts: until the next shift, and not until everybody has forgotten its reason.
pub const PROPOSAL_AGE_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// A proposal that another person may confirm.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct KeyProposal {
    #[serde(skip)]
    pub seq: i64,
    pub action: &'static str,
    /// The person, as in the audit log.
    pub actor: String,
    #[serde(serialize_with = "rfc3339::serialize")]
    #[schemars(with = "rfc3339::Written")]
    pub at: SystemTime,
    /// The time from which it does not count any more.
    #[serde(serialize_with = "rfc3339::serialize")]
    #[schemars(with = "rfc3339::Written")]
    pub until: SystemTime,
}

/// The key that a proposal is about, as it is now.
#[derive(Clone, Copy)]
struct ProposalTarget<'a> {
    token: &'a Token,
    state: StateKind,
    now: SystemTime,
}

impl KeyProposal {
    /// Reads the newest entry about a key; `None` if it is no proposal, or is one of another attempt or another state,
    /// by a person of another issuer, or too old.
    fn of_entry(newest: &AuditEntry, key: ProposalTarget<'_>, issuer: &str) -> Option<Self> {
        let action = FourEyesAction::ALL.into_iter().find(|action| action.proposal() == newest.action)?;
        let is_of_attempt = newest.note.as_deref().is_some_and(|note| names_attempt(note, key.token));
        // A late outcome and the end of a TTL leave the token as it is, and have no entry.
        let is_of_state = newest.before == key.state.name();
        let is_of_issuer = person_of(&newest.actor).is_some_and(|person| person.issuer == issuer);
        let until = newest.at + PROPOSAL_AGE_MAX;
        let (seq, action, actor) = (newest.seq, action.name(), newest.actor.clone());
        let proposal = Self { seq, action, actor, at: newest.at, until };
        (is_of_attempt && is_of_state && is_of_issuer && key.now < until).then_some(proposal)
    }
}

impl KeyAdmin<'_> {
    /// Returns the action for which two persons are needed here; `None` for one that one person decides.
    pub fn four_eyes_action(&self, kind: ActionKind) -> Option<FourEyesAction> {
        FourEyesAction::of_kind(kind).filter(|action| self.config.admin.four_eyes.contains(action))
    }

    /// The proposal about a key that counts now, by the newest entry about it.
    pub(super) fn read_proposal(&self, newest: Option<&AuditEntry>, entry: &KeyEntry) -> Option<KeyProposal> {
        let key = ProposalTarget { token: &entry.token, state: entry.state, now: entry.now };
        KeyProposal::of_entry(newest?, key, &issuer_digest(self.config.admin.oidc.as_ref()?))
    }

    async fn find_proposal(&self, entry: &KeyEntry) -> Result<Option<KeyProposal>, StoreError> {
        let params = ListAuditEntriesParams { service: self.service(), id: Some(entry.id), before: None, limit: 1 };
        Ok(self.read_proposal(self.store.list_audit_entries(params).await?.first(), entry))
    }

    /// The decision that an operator's wish becomes: a proposal, or the change that another person has proposed. A
    /// change that one person decides stays as it is. `seen` is the number of the proposal of this change that the
    /// operator saw.
    pub(super) async fn under_four_eyes(
        &self,
        entry: &KeyEntry,
        decision: OperatorDecision,
        seen: Option<i64>,
    ) -> Result<OperatorDecision, ApiProblem> {
        let Some(action) = self.four_eyes_action(decision.change.kind()) else { return Ok(decision) };
        let issuer = self.config.admin.oidc.as_ref().map(|oidc| issuer_digest(oidc));
        let person = person_of(&decision.actor).filter(|person| issuer.as_deref() == Some(person.issuer));
        let person = person.ok_or_else(|| self.needs_persons(action.name()))?;
        let found = self.find_proposal(entry).await?.filter(|proposal| proposal.action == action.name());
        if found.as_ref().map(|proposal| proposal.seq) != seen {
            let detail = match &found {
                Some(proposal) => format!("{} has proposed this since you looked: look again", proposal.actor),
                None => "the proposal that you saw has ended: look again".to_owned(),
            };
            return Err(ApiProblem::new(ProblemCode::FourEyes, detail));
        }
        match found {
            Some(proposal) => {
                if person_of(&proposal.actor) == Some(person) {
                    let detail =
                        format!("you have proposed this {} yourself: another person must confirm it", action.name());
                    return Err(ApiProblem::new(ProblemCode::FourEyes, detail));
                }
                let confirms = format!("confirms the proposal of {}", proposal.actor);
                let note = [Some(confirms), decision.note].into_iter().flatten().collect::<Vec<_>>().join("; ");
                Ok(OperatorDecision { note: Some(note), ..decision })
            }
            None => Ok(OperatorDecision { change: OperatorAction::Propose(action), ..decision }),
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
        let Some(action) = self.four_eyes_action(change.kind()) else { return Ok(()) };
        let detail = format!(
            "a {} needs two persons here (`admin.four_eyes`), who look at each key: propose it on the page of the key",
            action.name()
        );
        Err(ApiProblem::new(ProblemCode::FourEyes, detail))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oncegate_domain::ids::RecordId;
    use oncegate_store::admin::proposal_mark;

    #[test]
    fn a_proposal_counts_for_a_day_and_for_the_attempt_and_the_state_that_its_proposer_saw() {
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        let (token, other) = (Token::from_random([1; 16]), Token::from_random([2; 16]));
        let (mark, mark_of_other) = (proposal_mark(&token), proposal_mark(&other));
        let person = "ann (signed in as 7 by 1a2b3c4d) at 10.0.0.7";
        let (of_other, claimed) = ("ann (signed in as 7 by 5e6f7081) at 10.0.0.7", "ann (claimed) at 10.0.0.7");
        let (now, late) = (Duration::ZERO, PROPOSAL_AGE_MAX - Duration::from_secs(1));
        let unknown = StateKind::Unknown;
        for (action, actor, note, age, state, counts) in [
            ("propose purge", person, mark.clone(), now, unknown, true),
            ("propose release", person, format!("accept_risk; {mark}; ticket"), now, unknown, true),
            ("propose release", person, format!("quiet; {mark}"), now, unknown, true),
            ("propose purge", person, mark.clone(), late, unknown, true),
            ("propose purge", person, mark.clone(), PROPOSAL_AGE_MAX, unknown, false),
            ("purge", person, mark.clone(), now, unknown, false),
            ("propose purge", claimed, mark.clone(), now, unknown, false),
            ("propose purge", of_other, mark.clone(), now, unknown, false),
            ("propose purge", person, String::new(), now, unknown, false),
            ("propose purge", person, mark_of_other.clone(), now, unknown, false),
            // Somebody has typed the mark of the next attempt.
            ("propose purge", person, format!("{mark_of_other}; {mark}"), now, unknown, false),
            ("propose purge", person, format!("accept_risk; {mark_of_other}; {mark}"), now, unknown, false),
            ("propose purge", person, format!("accept_risk; quiet; {mark}"), now, unknown, false),
            // The attempt is the same: its outcome came late, or its TTL has ended.
            ("propose purge", person, mark.clone(), now, StateKind::Completed, false),
            ("propose purge", person, mark.clone(), now, StateKind::Expired, false),
        ] {
            let (before, after) = ("unknown".to_owned(), "unknown".to_owned());
            let id = RecordId::from_stored(&[1; 32]).unwrap();
            let note = Some(note).filter(|note| !note.is_empty());
            let newest = AuditEntry { seq: 1, at, actor: actor.into(), action: action.into(), id, before, after, note };
            let seen = ProposalTarget { token: &token, state, now: at + age };
            assert_eq!(
                KeyProposal::of_entry(&newest, seen, "1a2b3c4d").is_some(),
                counts,
                "{newest:?} {age:?} {state}"
            );
        }
    }
}
