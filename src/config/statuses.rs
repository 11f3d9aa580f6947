//! The three lists of statuses, from text to table.

use super::reader::{Found, Section};
use crate::domain::policy::{StatusEntry, StatusList, StatusTable, Verdict};

const LISTS: [(&str, Verdict); 3] = [
    ("store_statuses", Verdict::Store),
    ("release_statuses", Verdict::Release),
    ("unknown_statuses", Verdict::Unknown),
];

pub(super) fn read(section: &Section<'_>) -> Option<StatusTable> {
    let lists = LISTS.map(|(name, verdict)| (name, verdict, section.list(name, parse)));
    let mut entries: Vec<(&str, &Found<StatusEntry>)> = Vec::new();
    for (name, _, list) in &lists {
        let written = list.iter().filter(|list| list.place.is_written());
        entries.extend(written.flat_map(|list| &list.value).map(|entry| (*name, entry)));
    }
    // A problem is at the second of the two, by their places: the lists may be written in any order.
    entries.sort_by(|(_, one), (_, other)| one.place.cmp(&other.place));
    for (index, (list, entry)) in entries.iter().enumerate() {
        let twice = entries[..index].iter().find(|(other, before)| other != list && before.value == entry.value);
        if let Some((other, _)) = twice {
            let message = format!("{} stands in `{other}` too: a status can mean one thing", show(entry.value));
            section.reader().problem(&entry.place, message);
        }
    }
    let lists: Option<Vec<_>> = lists
        .into_iter()
        .map(|(_, verdict, list)| {
            let list = list?;
            let written = list.place.is_written();
            Some(StatusList { verdict, entries: list.value.into_iter().map(|entry| entry.value).collect(), written })
        })
        .collect();
    // Fails for an entry in two written lists alone, which was found above.
    StatusTable::new(&lists?).ok()
}

fn parse(text: &str) -> Result<StatusEntry, String> {
    StatusEntry::parse(text).ok_or_else(|| {
        "is no final status: write a code from \"200\" to \"599\", or a class, \"2xx\" to \"5xx\"".into()
    })
}

fn show(entry: StatusEntry) -> String {
    match entry {
        StatusEntry::Class(class) => format!("{class}xx"),
        StatusEntry::Code(code) => code.to_string(),
    }
}
