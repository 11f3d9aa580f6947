//! The runbooks about keys that wait for a decision: the same text as in `docs/runbooks`, for those who have no other copy now.

use askama::Template;
use http::{Response, StatusCode};

use super::format::{Shown, ShownTime};
use super::{Frame, Visit, render_page};
use crate::body::Body;

/// A runbook that the page can show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runbook {
    DeadKeys,
    UnknownKeys,
}

impl Runbook {
    /// The runbook of that name.
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "dead-keys" => Some(Self::DeadKeys),
            "unknown-keys" => Some(Self::UnknownKeys),
            _ => None,
        }
    }

    /// Its text, in Markdown.
    fn text(self) -> &'static str {
        match self {
            Self::DeadKeys => include_str!("../../../docs/runbooks/dead-keys.md"),
            Self::UnknownKeys => include_str!("../../../docs/runbooks/unknown-keys.md"),
        }
    }
}

#[derive(Template)]
#[template(path = "runbook.html")]
struct RunbookPage {
    frame: Frame,
    title: &'static str,
    text: &'static str,
}

impl Visit<'_> {
    /// Shows a runbook.
    pub(super) async fn show_runbook(&self, runbook: Runbook) -> Response<Body> {
        let (title, text) = runbook.text().trim_start_matches("# ").split_once('\n').unwrap_or_default();
        render_page(StatusCode::OK, &RunbookPage { frame: self.build_frame().await, title, text: text.trim() })
    }
}
