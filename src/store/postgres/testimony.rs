//! What services say of their own attempts, in PostgreSQL. What they say in transactions of their own, they say to the
//! functions that the migrations made.

use std::sync::Arc;

use tokio::time::Instant;
use tokio_postgres::types::Type;

use super::failure::Failure;
use super::upkeep::{Parameter, column, query};
use super::{Patience, Postgres, persist};
use crate::domain::record::RecordId;
use crate::domain::response::Corrupt;
use crate::domain::testimony::{Heard, Terms, What, Word};
use crate::store::Pending;
use crate::store::row::millis;
use crate::store::testimony::{Testimony, heard};

const DENY: &str = include_str!("sql/deny.sql");
const HEED: &str = include_str!("sql/heed.sql");
const LEAVE_TERMS: &str = include_str!("sql/leave_terms.sql");
const REACH: &str = include_str!("sql/reach.sql");

impl Testimony for Postgres {
    fn hear(&self, word: Word) -> Pending<'_, Heard> {
        let (word, deadline) = (Arc::new(word), self.deadline());
        // Said twice it says the same.
        Box::pin(persist(deadline, Patience::InDoubt, move |_| self.hear_once(Arc::clone(&word), deadline)))
    }

    fn heed(&self, limit: u32) -> Pending<'_, Vec<RecordId>> {
        let deadline = self.deadline();
        Box::pin(persist(deadline, Patience::InDoubt, move |_| async move {
            let rows = query(&self.upkeep, deadline, HEED, &[(/* limit */ &i64::from(limit), Type::INT8)]).await?;
            let id = |row: &tokio_postgres::Row| {
                Ok(RecordId::from_stored(row.try_get("id").map_err(column)?).ok_or(Corrupt("id"))?)
            };
            rows.iter().map(id).collect()
        }))
    }

    fn leave_terms(&self, service: Arc<str>, terms: Vec<Terms>) -> Pending<'_, ()> {
        let deadline = self.deadline();
        let left = Arc::new((service, terms));
        Box::pin(persist(deadline, Patience::Always, move |_| self.leave_terms_once(Arc::clone(&left), deadline)))
    }
}

impl Postgres {
    async fn hear_once(&self, word: Arc<Word>, deadline: Instant) -> Result<Heard, Failure> {
        let Word { service, of, what } = &*word;
        let (id, token) = (of.id.as_bytes().as_slice(), of.token.as_bytes().as_slice());
        let named: [Parameter<'_>; 3] =
            [(/* id */ &id, Type::BYTEA), (/* token */ &token, Type::BYTEA), (/* service */ &&**service, Type::TEXT)];
        let [id, token, service] = named;
        let rows = match what {
            What::NotExecuted(ttl) => {
                let ttl_ms = millis(*ttl);
                let parameters = [id, token, service, (/* ttl_ms */ &ttl_ms as _, Type::INT8)];
                query(&self.upkeep, deadline, DENY, &parameters).await?
            }
            What::Reached(point) => {
                let name = point.as_str();
                let parameters = [id, token, service, (/* recovery_point */ &name as _, Type::TEXT)];
                query(&self.upkeep, deadline, REACH, &parameters).await?
            }
        };
        let Some(row) = rows.first() else { return Ok(Heard::Gone) };
        let state: &str = row.try_get("state").map_err(column)?;
        Ok(match heard(state, row.try_get("held").map_err(column)?) {
            // How far it has come is so at once.
            Heard::Noted if matches!(what, What::Reached(_)) => Heard::Taken,
            heard => heard,
        })
    }

    async fn leave_terms_once(&self, left: Arc<(Arc<str>, Vec<Terms>)>, deadline: Instant) -> Result<(), Failure> {
        let (service, terms) = &*left;
        let each = |of: fn(&Terms) -> i64| terms.iter().map(of).collect::<Vec<_>>();
        let routes: Vec<&str> = terms.iter().map(|terms| &*terms.route).collect();
        let remember: Vec<Option<i64>> = terms.iter().map(|terms| terms.remember.map(millis)).collect();
        let dropped = |terms: &Terms| terms.drop_headers.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(",");
        let dropped: Vec<String> = terms.iter().map(dropped).collect();
        let parameters: [Parameter<'_>; 6] = [
            (/* service */ &&**service, Type::TEXT),
            (/* route */ &routes, Type::TEXT_ARRAY),
            (/* ttl_ms */ &each(|terms| millis(terms.ttl)), Type::INT8_ARRAY),
            (/* remember_ms */ &remember, Type::INT8_ARRAY),
            (/* body_max */ &each(|terms| i64::try_from(terms.body_max).unwrap_or(i64::MAX)), Type::INT8_ARRAY),
            (/* drop_headers */ &dropped, Type::TEXT_ARRAY),
        ];
        query(&self.upkeep, deadline, LEAVE_TERMS, &parameters).await.map(drop)
    }
}
