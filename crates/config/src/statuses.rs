//! Reads and checks the three lists of statuses of a route.

use super::reader::Section;
use oncegate_domain::response_policy::{ResponseVerdict, StatusEntry, StatusList, StatusTable};

const LISTS: [(&str, ResponseVerdict); 3] = [
    ("store_statuses", ResponseVerdict::Store),
    ("release_statuses", ResponseVerdict::Release),
    ("unknown_statuses", ResponseVerdict::Unknown),
];

/// Reads the three lists; `None` where an entry has a problem, or is in two written lists.
pub(super) fn read(section: &Section<'_>) -> Option<StatusTable> {
    let lists = LISTS.map(|(name, verdict)| (name, verdict, section.list(name, parse)));
    let is_written = |name| section.is_right(&[name]) && section.position(name).is_written();
    let written = lists.iter().filter(|(name, ..)| is_written(name));
    let mut entries: Vec<_> =
        written.flat_map(|(name, _, list)| list.iter().map(move |entry| (*name, entry))).collect();
    // The problem is at the second of the two positions: the lists may be written in any order.
    entries.sort_by(|(_, one), (_, other)| one.position.cmp(&other.position));
    for (index, (list, entry)) in entries.iter().enumerate() {
        let twice = entries[..index].iter().find(|(other, before)| other != list && before.value == entry.value);
        if let Some((other, _)) = twice {
            let message = format!("{} is in `{other}` too: a status can be in one list only", show(entry.value));
            section.reader().problem(&entry.position, message);
        }
    }
    let lists = lists.map(|(name, verdict, list)| StatusList {
        verdict,
        entries: list.into_iter().map(|entry| entry.value).collect(),
        written: is_written(name),
    });
    StatusTable::new(&lists).ok()
}

fn parse(text: &str) -> Result<StatusEntry, String> {
    StatusEntry::parse(text).ok_or_else(|| {
        "is no final status: write a code from \"200\" to \"599\", a class, \"2xx\" to \"5xx\", or the name of a gRPC status, like \
         \"grpc:UNAVAILABLE\""
            .into()
    })
}

fn show(entry: StatusEntry) -> String {
    match entry {
        StatusEntry::Class(class) => format!("{class}xx"),
        StatusEntry::Code(code) => code.to_string(),
        StatusEntry::Grpc(status) => status.to_string(),
    }
}
