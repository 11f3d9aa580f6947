//! Reads and checks the three lists of statuses of a route.

use super::reader::{Located, Section};
use crate::domain::response_policy::{ResponseVerdict, StatusEntry, StatusList, StatusTable};

const LISTS: [(&str, ResponseVerdict); 3] = [
    ("store_statuses", ResponseVerdict::Store),
    ("release_statuses", ResponseVerdict::Release),
    ("unknown_statuses", ResponseVerdict::Unknown),
];

pub(super) fn read(section: &Section<'_>) -> Option<StatusTable> {
    let lists = LISTS.map(|(name, verdict)| (name, verdict, section.list(name, parse)));
    let mut entries: Vec<(&str, &Located<StatusEntry>)> = Vec::new();
    for (name, _, list) in &lists {
        let written = list.iter().filter(|list| list.position.is_written());
        entries.extend(written.flat_map(|list| &list.value).map(|entry| (*name, entry)));
    }
    // The problem is at the second of the two positions: the lists may be written in any order.
    entries.sort_by(|(_, one), (_, other)| one.position.cmp(&other.position));
    for (index, (list, entry)) in entries.iter().enumerate() {
        let twice = entries[..index].iter().find(|(other, before)| other != list && before.value == entry.value);
        if let Some((other, _)) = twice {
            let message = format!("{} is in `{other}` too: a status can be in one list only", show(entry.value));
            section.reader().problem(&entry.position, message);
        }
    }
    let lists: Option<Vec<_>> = lists
        .into_iter()
        .map(|(_, verdict, list)| {
            let list = list?;
            let written = list.position.is_written();
            Some(StatusList { verdict, entries: list.value.into_iter().map(|entry| entry.value).collect(), written })
        })
        .collect();
    // It fails only for an entry in two written lists, which is reported above.
    StatusTable::new(&lists?).ok()
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
