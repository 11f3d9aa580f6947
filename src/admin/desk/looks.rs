//! The questions that change nothing.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::asked::{self, Query};
use super::problem::Problem;
use super::{At, shown};
use crate::domain::record::State;
use crate::domain::rfc3339;
use crate::store::StoreError;
use crate::store::books::{Entry, Filter};

/// How long keys that fit are looked for before an answer with few of them, and a place to go on from, is given.
const LOOK_MAX: Duration = Duration::from_secs(1);

/// As many lines of the audit log as one key is shown with.
const NOTES_SHOWN: u32 = 100;

/// As much of a fingerprint as is shown.
const FINGERPRINT_DIGITS: usize = 12;

impl At<'_> {
    pub(super) async fn list(&self, mut query: Query) -> Result<Value, Problem> {
        let filter = query.filter()?;
        let limit = query.limit()?;
        let order = filter.order();
        let mut place = match query.text("cursor")? {
            Some(text) => {
                let place = asked::bookmark(&text, order);
                Some(place.ok_or_else(|| Problem::bad("cursor", "is none of a listing with this filter"))?)
            }
            None => None,
        };
        query.end()?;
        let begun = Instant::now();
        let mut keys = Vec::new();
        loop {
            let left = limit - u32::try_from(keys.len()).unwrap_or(limit);
            let page = self.store.books().page(self.service(), filter.clone(), place, left).await?;
            keys.extend(page.entries.iter().map(shown::entry));
            place = page.next;
            if place.is_none() || keys.len() >= limit as usize || begun.elapsed() >= LOOK_MAX {
                break;
            }
        }
        Ok(json!({ "keys": keys, "next_cursor": place.map(|mark| asked::cursor(&mark, order)) }))
    }

    /// All about a key. Bodies and the values of fields are left out: they are the caller's, and a listener for operators
    /// is no way around the scope that keeps one caller's responses from another.
    pub(super) async fn show(&self, id: &str, query: Query) -> Result<Value, Problem> {
        query.end()?;
        let entry = self.entry(id).await?;
        let quiet_at = self.terms(&entry.route).quiet_after.map(|after| entry.deadline + after);
        let mut key = shown::entry(&entry);
        key["quiet"] = quiet_at.is_some_and(|at| at <= entry.now).into();
        key["quiet_at"] = quiet_at.map(rfc3339::show).into();
        let found = self.store.find(entry.id).await;
        key["recovery_point"] = match &found {
            Ok(Some(record)) => record.recovery_point.as_ref().map(ToString::to_string).into(),
            _ => Value::Null,
        };
        // What says nothing of a body to whoever cannot guess it whole, and tells two requests apart all the same.
        key["fingerprint"] = found
            .as_ref()
            .ok()
            .and_then(Option::as_ref)
            .map(|record| {
                let hash: String = record.fingerprint.to_string().chars().take(FINGERPRINT_DIGITS).collect();
                json!({ "hash": hash, "recipe": record.recipe.to_stored() })
            })
            .into();
        key["response"] = match found {
            Ok(Some(record)) if record.token == entry.token => match record.state {
                State::Completed(completed) => {
                    let names = |map: &http::HeaderMap| map.keys().map(|name| name.as_str().to_owned()).collect();
                    let (headers, trailers): (Vec<String>, Vec<String>) =
                        (names(&completed.response.headers), names(&completed.response.trailers));
                    json!({
                        "status": completed.response.status.as_u16(),
                        "headers": headers,
                        "trailers": trailers,
                        "body_kept": completed.response.body.is_some(),
                        "body_bytes": completed.response.body.as_ref().map(bytes::Bytes::len),
                    })
                }
                _ => Value::Null,
            },
            Ok(_) => Value::Null,
            Err(StoreError::Corrupt(what)) => json!({ "corrupt": what.to_string() }),
            Err(error) => return Err(error.into()),
        };
        let notes = self.store.books().audit(self.service(), Some(entry.id), None, NOTES_SHOWN).await?;
        key["audit"] = notes.iter().map(shown::note).collect();
        Ok(key)
    }

    /// The one key that an id, or the beginning of one, names.
    pub(super) async fn entry(&self, id: &str) -> Result<Entry, Problem> {
        let filter = Filter { ids: asked::ids(id)?, ..Filter::default() };
        let mut page = self.store.books().page(self.service(), filter, None, 2).await?;
        match (page.entries.pop(), page.entries.pop()) {
            (Some(entry), None) => Ok(entry),
            (None, _) => Err(Problem::no_such_key()),
            (Some(_), Some(_)) => Err(Problem::bad("id", "is the beginning of several: write more of it")),
        }
    }

    pub(super) async fn stats(&self, query: Query) -> Result<Value, Problem> {
        query.end()?;
        let tally = self.store.books().tally(self.service()).await?;
        let counts = tally.counts.iter().map(
            |count| json!({ "route": count.route, "state": count.state.name(), "keys": count.keys, "exact": count.exact }),
        );
        Ok(json!({
            "service": &*self.config.service,
            "counts": counts.collect::<Vec<_>>(),
            "sample": { "rows": tally.sampled, "share": tally.share },
        }))
    }

    pub(super) async fn audit(&self, mut query: Query) -> Result<Value, Problem> {
        let limit = query.limit()?;
        let id = match query.text("id")? {
            Some(text) => {
                let id = asked::whole_id(&text);
                Some(id.ok_or_else(|| Problem::bad("id", "is no id: write its 64 hexadecimal digits"))?)
            }
            None => None,
        };
        let before = match query.text("cursor")? {
            Some(text) => Some(text.parse().map_err(|_| Problem::bad("cursor", "is none of the audit log"))?),
            None => None,
        };
        query.end()?;
        let notes = self.store.books().audit(self.service(), id, before, limit).await?;
        let full = notes.len() >= limit as usize;
        let next = notes.last().filter(|_| full).map(|note| note.seq.to_string());
        Ok(json!({ "entries": notes.iter().map(shown::note).collect::<Vec<_>>(), "next_cursor": next }))
    }
}
