//! Threads for the work that a coordinator executes itself: created on demand, reused, and limited
//! in number; further jobs wait in a queue.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};

#[cfg(test)]
use crate::base::host;

type Job = Box<dyn FnOnce() + Send>;

pub(crate) struct Pool {
    jobs: Sender<Job>,
    waiting: Arc<Mutex<Receiver<Job>>>,
    /// Jobs that were submitted and have not ended.
    open: Arc<AtomicUsize>,
    threads: usize,
    most: usize,
}

/// Enough for a child process and its capture; a coordinator may have many threads.
const STACK: usize = 512 * 1024;

impl Pool {
    pub(crate) fn new(most: usize) -> Pool {
        let (jobs, waiting) = mpsc::channel();
        let waiting = Arc::new(Mutex::new(waiting));
        Pool { jobs, waiting, open: Arc::default(), threads: 0, most }
    }

    pub(crate) fn give(&mut self, job: impl FnOnce() + Send + 'static) {
        #[cfg(test)]
        if host::is_simulated() {
            return drop(host::spawn(job));
        }
        let open = self.open.fetch_add(1, Ordering::SeqCst) + 1;
        if open > self.threads && self.threads < self.most {
            self.threads += 1;
            let (waiting, open) = (self.waiting.clone(), self.open.clone());
            let work = move || {
                loop {
                    let next = waiting.lock().unwrap_or_else(|poison| poison.into_inner()).recv();
                    let Ok(job) = next else { return };
                    job();
                    open.fetch_sub(1, Ordering::SeqCst);
                }
            };
            let made = std::thread::Builder::new().stack_size(STACK).spawn(work);
            if let Err(error) = made {
                self.threads -= 1;
                tracing::warn!("cannot make a thread: {error}; {} do the work", self.threads);
            }
        }
        self.jobs.send(Box::new(job)).expect("the pool holds the other end");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_run_side_by_side_up_to_the_most_and_all_of_them_run() {
        let mut pool = Pool::new(2);
        let (tell, told) = mpsc::channel();
        let together = Arc::new(std::sync::Barrier::new(2));
        for number in 0..10 {
            let (tell, together) = (tell.clone(), together.clone());
            pool.give(move || {
                together.wait();
                let _ = tell.send(number);
            });
        }
        let mut all: Vec<i32> = told.iter().take(10).collect();
        all.sort_unstable();
        assert_eq!(all, (0..10).collect::<Vec<_>>());
        assert_eq!(pool.threads, 2);
    }
}
