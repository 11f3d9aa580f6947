//! The part that all pages have in common: names, readiness, a refused reload, a notice.

use std::sync::Arc;
use std::time::SystemTime;

use super::Visit;
use super::live::LiveView;
use super::selection::read_results;
use super::sessions::Visitor;
use super::text::{ActionTexts, explain_refusals, parse_action};
use oncegate_domain::execution_risk::FourEyesAction;
use oncegate_domain::quantity::quantity;
use oncegate_engine::instance::reload_state::RefusedReload;

pub struct Frame {
    pub service: Arc<str>,
    /// The others that the visitor may see.
    pub others: Vec<Arc<str>>,
    pub instance: String,
    pub reasons: Vec<String>,
    pub refused_reload: Option<Arc<RefusedReload>>,
    pub visitor: Visitor,
    pub now: SystemTime,
    pub version: &'static str,
    pub notice: Option<String>,
    /// Whether the page is refreshed, and how to change that; `None` where it never is.
    pub live: Option<LiveView>,
}

impl Frame {
    /// Whether the page is refreshed: then it has no fields, so that nothing half filled is lost.
    pub fn is_live(&self) -> bool {
        self.live.as_ref().is_some_and(LiveView::is_on)
    }
}

impl Visit<'_> {
    pub(super) async fn build_frame(&self) -> Frame {
        let instance = &self.admin.instance;
        Frame {
            service: Arc::clone(&self.service),
            others: self.other_services(),
            instance: instance.instance_lease.id().to_string(),
            reasons: self.admin.readiness().await.reasons,
            // It has the files of all services.
            refused_reload: instance.reload_state.refusal().filter(|_| self.visitor.service.is_none()),
            visitor: self.visitor.clone(),
            now: SystemTime::now(),
            version: env!("CARGO_PKG_VERSION"),
            notice: self.build_notice(),
            live: self.live.clone(),
        }
    }

    fn other_services(&self) -> Vec<Arc<str>> {
        let config = self.admin.config.borrow();
        let is_other = |name: &&Arc<str>| **name != self.service && self.visitor.may_see(name);
        config.service_names().filter(is_other).map(Arc::clone).collect()
    }

    /// Returns a notice about the change that the address names, in words of this page alone.
    fn build_notice(&self) -> Option<String> {
        if FourEyesAction::parse(self.query.get("proposed")).is_some() {
            return Some(
                "Proposed. Nothing changes until another person confirms it here, within 24 hours.".to_owned(),
            );
        }
        let number = |name: &str| self.query.get(name).parse::<u64>().ok();
        if let Some(requeued) = number("requeued") {
            let events = quantity(requeued, "event is", "events are");
            return Some(format!("Done. {events} published again. The figures below follow within seconds."));
        }
        let action = parse_action(self.query.get("done"))?;
        let mut notice = match number("changed") {
            None => format!("Done. The key is {}.", action.text().done),
            Some(changed) => format!("Done. {} {}.", quantity(changed, "key is", "keys are"), action.text().done),
        };
        if let Some(refused @ 1..) = number("refused") {
            let why = explain_refusals(read_results(&self.query).filter_map(|(_, refused)| refused));
            let were = quantity(refused, "key was", "keys were");
            notice.push_str(&format!(" {were} not changed: {why}."));
        }
        if let Some(behind @ 1..) = number("behind") {
            let instances = quantity(behind, "running instance has", "running instances have");
            notice.push_str(&format!(
                " {instances} not confirmed that it is forgotten: until the lease has run out, it may still be replayed."
            ));
        }
        Some(notice)
    }
}
