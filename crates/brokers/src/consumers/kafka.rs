//! Records of Kafka: topics that a consumer group shares out.
//!
//! `session` is one membership of the group, with the connection of `group_member`. `assignment` says which record may
//! start, `committable_offset` which offset may be committed, and `attempt` executes one record.

mod assignment;
mod attempt;
mod committable_offset;
mod group_member;
mod member_event;
mod record;
mod record_reader;
pub(super) mod session;
