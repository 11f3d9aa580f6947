//! The explanation of a request, as `oncegate explain` prints it, with the facts that only the store has.

use http::request;
use serde_json::{Value, json};

use super::KeyAdmin;
use super::problem::ApiProblem;
use oncegate_domain::part_bits::PartKey;
use oncegate_domain::request_part::RequestPart;
use oncegate_engine::gate::admit::explain::{
    ComparedRequest, Explained, ExplainedCaller, ExplainedRefusal, StoredRequest, explain,
};
use oncegate_engine::tasks::issuer_keys::verify_now;
use oncegate_http::protocol::refusal::Refusal;

impl KeyAdmin<'_> {
    /// Explains a request with its caller's hash and its record's id; beside the request of the record `against`, if
    /// one is named.
    pub(super) async fn explain(
        &self,
        head: &request::Parts,
        body: &[u8],
        against: Option<&str>,
    ) -> Result<Value, ApiProblem> {
        let salt = self.read_salt().await?;
        let (mut compared, mut stored) = (None, None);
        if let Some(id) = against {
            let entry = self.find_entry(id).await?;
            compared = Some(entry.id);
            let record = self.store.find(entry.id).await?.ok_or_else(ApiProblem::no_such_key)?;
            let parts = self.store.find_parts(&entry.id, &record.fingerprint).await?;
            let parts = parts.map(|bits| (bits, PartKey::new(&salt, &entry.id)));
            stored = Some(StoredRequest { recipe: record.recipe, fingerprint: record.fingerprint, parts });
        }
        let (token, problem) = verify_now(&self.config, &head.headers).await;
        let caller = ExplainedCaller { token, certificate: None };
        let explained =
            explain((Some(&self.service), &self.config), head, body, caller, (Some(&salt), stored.as_ref()));
        let mut document = render(explained.as_ref(), None);
        if let (Some(id), Ok(Explained { stored, compared: Some(_), .. })) = (compared, &explained) {
            document["against"]["is_record"] = stored.is_some_and(|(_, own)| own == id).into();
        }
        if let Some(problem) = problem {
            document["warning"] = problem.into();
        }
        Ok(document)
    }
}

/// The explanation as a document; with that of another request under the same key.
pub fn render(explained: Result<&Explained, &ExplainedRefusal>, retry: Option<&Explained>) -> Value {
    let explained = match explained {
        Ok(explained) => explained,
        Err(ExplainedRefusal { refusal, answer_shape }) => {
            let status = answer_shape.status(refusal).as_u16();
            return json!({ "status": status, "code": refusal.slug(), "detail": refusal.detail() });
        }
    };
    let mut document = json!({
        "route": explained.route,
        "mode": explained.mode,
        "key": explained.key,
        "scope": describe_scope(explained),
        "space": explained.space,
        "recipe": explained.recipe,
        "canonical_body": explained.body.content.to_text(),
        "body_form": explained.body.form,
        "body_decoded": explained.body.is_decoded,
        "parts": explained.parts.iter().map(RequestPart::place).collect::<Vec<_>>(),
        "fingerprint": explained.fingerprint.map(|fingerprint| fingerprint.to_string()),
    });
    if let Some((scope, id)) = &explained.stored {
        document["caller"] = scope.to_string().into();
        document["record"] = id.to_string().into();
    }
    if let Some(compared) = &explained.compared {
        document["against"] = match compared {
            ComparedRequest::Impossible => json!({ "code": "secret-gone" }),
            ComparedRequest::Same => json!({ "code": "same" }),
            ComparedRequest::Different(None) => json!({ "code": "key-reused" }),
            ComparedRequest::Different(Some(parts)) => refused(&Refusal::KeyReused(parts.clone())),
        };
    }
    if let Some(retry) = retry {
        document["retry"] = explain_retry(explained, retry);
    }
    document
}

fn refused(refusal: &Refusal) -> Value {
    json!({
        "code": refusal.slug(),
        "retry": refusal.client_action(),
        "differs": refusal.differs(),
        "detail": refusal.detail(),
    })
}

/// The fate of another request under the same key.
fn explain_retry(first: &Explained, retry: &Explained) -> Value {
    let record = |explained: &Explained| (explained.key.clone(), explained.scope.clone(), explained.space.clone());
    if record(first) != record(retry) {
        return json!({ "code": "another-key" });
    }
    if first.key.is_none() {
        return json!({ "code": "unguarded" });
    }
    first.refuse_retry(retry).map_or_else(|| json!({ "code": "same" }), |refusal| refused(&refusal))
}

fn describe_scope(explained: &Explained) -> String {
    if explained.key.is_none() {
        return "none: the request has no key".into();
    }
    if explained.scope.is_empty() {
        return "none: all callers share their keys".into();
    }
    let part = |(name, hash): &(String, Option<String>)| match hash {
        Some(hash) => format!("{name} (sha256 {hash}...)"),
        None => format!("{name} (missing)"),
    };
    explained.scope.iter().map(part).collect::<Vec<_>>().join(", ")
}
