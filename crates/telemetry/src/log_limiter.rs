//! Limits a repeated log line to one in a period for each subject, in bounded memory.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Decides which occurrences are logged. An occurrence that is not logged is in the count of the subject's next line.
#[derive(Debug)]
pub struct LogLimiter {
    /// The number of subjects that may have a line within one period.
    places: usize,
    period: Duration,
    subjects: Mutex<HashMap<String, Subject>>,
}

#[derive(Debug)]
struct Subject {
    logged_at: Instant,
    /// Occurrences since the last line.
    pending: u64,
}

impl LogLimiter {
    pub fn new(places: usize, period: Duration) -> Self {
        Self { places, period, subjects: Mutex::default() }
    }

    /// Counts one occurrence. Returns the number of occurrences for a line that is due now, this one included; `None`
    /// if no line is due, or if as many subjects as there are places had their line within the period.
    pub fn count(&self, subject: &str) -> Option<u64> {
        let now = Instant::now();
        let is_over = |subject: &Subject| now.duration_since(subject.logged_at) >= self.period;
        let mut subjects = self.subjects.lock();
        if let Some(known) = subjects.get_mut(subject) {
            known.pending += 1;
            if !is_over(known) {
                return None;
            }
            known.logged_at = now;
            return Some(std::mem::take(&mut known.pending));
        }
        if subjects.len() >= self.places {
            subjects.retain(|_, known| !is_over(known));
        }
        let has_room = subjects.len() < self.places;
        if has_room {
            subjects.insert(subject.to_owned(), Subject { logged_at: now, pending: 0 });
        }
        has_room.then_some(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn a_subject_is_logged_once_in_a_period_with_the_count_since_its_last_line() {
        let limiter = LogLimiter::new(9, PERIOD);
        assert_eq!(limiter.count("a"), Some(1));
        assert_eq!((limiter.count("a"), limiter.count("a"), limiter.count("b")), (None, None, Some(1)));
        tokio::time::advance(PERIOD).await;
        assert_eq!((limiter.count("a"), limiter.count("a")), (Some(3), None));
    }

    #[tokio::test(start_paused = true)]
    async fn more_subjects_than_places_have_no_line_until_a_period_is_over() {
        let limiter = LogLimiter::new(2, PERIOD);
        assert_eq!((limiter.count("a"), limiter.count("b"), limiter.count("c")), (Some(1), Some(1), None));
        assert_eq!(limiter.subjects.lock().len(), 2);
        tokio::time::advance(PERIOD).await;
        assert_eq!((limiter.count("c"), limiter.subjects.lock().len()), (Some(1), 1));
    }
}
