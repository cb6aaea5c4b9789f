//! A small pool for work of tens of microseconds: workers spin briefly before they sleep, and the caller works too.
//!
//! Spinning is on plain loads, without the processor's pause hint: a virtual machine's host takes a core away that pauses too
//! often, which costs more than the wait.
//!
//! A general work-stealing pool costs more to wake than one matrix-vector product of a small layer takes.

use std::sync::atomic::{AtomicUsize, Ordering::*};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, TryLockError};
use std::time::{Duration, Instant};

/// How long an idle worker keeps looking for work before it sleeps: longer than the gap between two operations of a
/// decode step, shorter than anybody would notice as heat.
const SPIN: Duration = Duration::from_micros(150);

type Task<'a> = dyn Fn(usize) + Sync + 'a;

#[derive(Clone, Copy)]
struct Job {
    task: *const Task<'static>,
    n_chunks: usize,
}
// SAFETY: the pointer is only used while `run` keeps the task alive, see there.
unsafe impl Send for Job {}

/// On a cache line of its own: what one thread spins on must not share a line with what another writes.
#[repr(align(128))]
struct Apart<T>(T);

struct Shared {
    /// Even = idle, odd = a job is open. Grows with every change.
    epoch: Apart<AtomicUsize>,
    job: Apart<Mutex<Option<Job>>>,
    next_chunk: Apart<AtomicUsize>,
    /// Workers inside the open job.
    inside: Apart<AtomicUsize>,
    panicked: AtomicUsize,
    sleepers: AtomicUsize,
    wake: Condvar,
    wake_lock: Mutex<()>,
}

struct Pool {
    shared: &'static Shared,
    n_threads: usize,
    /// Only one caller at a time; a second one works alone.
    busy: Mutex<()>,
}

impl Pool {
    /// `None` = another caller is in. A task that panicked in here leaves nothing half done: the lock guards no data.
    fn enter(&self) -> Option<MutexGuard<'_, ()>> {
        match self.busy.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

/// Threads that work on one operation, the caller included. `FORETOKEN_THREADS` overrides the number of cores.
pub fn n_threads() -> usize {
    pool().n_threads
}

fn wanted_threads() -> usize {
    std::env::var("FORETOKEN_THREADS")
        .ok()
        .and_then(|v| v.parse().ok())
        .filter(|n| (1..=256).contains(n))
        .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |n| n.get()).min(16))
}

fn pool() -> &'static Pool {
    static POOL: OnceLock<Pool> = OnceLock::new();
    POOL.get_or_init(|| {
        let shared: &'static Shared = Box::leak(Box::new(Shared {
            epoch: Apart(AtomicUsize::new(0)),
            job: Apart(Mutex::new(None)),
            next_chunk: Apart(AtomicUsize::new(0)),
            inside: Apart(AtomicUsize::new(0)),
            panicked: AtomicUsize::new(0),
            sleepers: AtomicUsize::new(0),
            wake: Condvar::new(),
            wake_lock: Mutex::new(()),
        }));
        let mut n_threads = 1;
        for i in 1..wanted_threads() {
            // A machine that refuses threads still computes, on fewer.
            if std::thread::Builder::new()
                .name(format!("kernel-{i}"))
                .spawn(move || work(shared))
                .is_ok()
            {
                n_threads += 1;
            }
        }
        Pool { shared, n_threads, busy: Mutex::new(()) }
    })
}

fn work(shared: &'static Shared) {
    let mut seen = 0;
    loop {
        let began = Instant::now();
        let mut spins = 0u32;
        loop {
            let epoch = shared.epoch.0.load(Acquire);
            if epoch != seen && !epoch.is_multiple_of(2) {
                seen = epoch;
                break;
            }
            spins += 1;
            if spins.is_multiple_of(1024) && began.elapsed() > SPIN {
                let guard = shared.wake_lock.lock().unwrap_or_else(|p| p.into_inner());
                shared.sleepers.fetch_add(1, SeqCst);
                let stay = shared.epoch.0.load(SeqCst);
                if stay == seen || stay.is_multiple_of(2) {
                    drop(shared.wake.wait(guard));
                }
                shared.sleepers.fetch_sub(1, SeqCst);
            }
        }
        // Entering under the job's lock: `run` closes the job under the same lock and then waits for `inside` to be 0.
        let job = {
            let open = shared.job.0.lock().unwrap_or_else(|p| p.into_inner());
            if let Some(job) = *open {
                shared.inside.0.fetch_add(1, SeqCst);
                Some(job)
            } else {
                None
            }
        };
        if let Some(job) = job {
            // SAFETY: `run` does not return, and so the task lives, until `inside` is 0 again.
            let task = unsafe { &*job.task };
            if std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                claim(shared, task, job.n_chunks)
            }))
            .is_err()
            {
                shared.panicked.fetch_add(1, SeqCst);
            }
            shared.inside.0.fetch_sub(1, Release);
        }
    }
}

fn claim(shared: &Shared, task: &Task<'_>, n_chunks: usize) {
    loop {
        let chunk = shared.next_chunk.0.fetch_add(1, Relaxed);
        if chunk >= n_chunks {
            return;
        }
        task(chunk);
    }
}

/// Calls `task(0)..task(n_chunks - 1)`, each once, on all threads, and returns when all are done.
pub fn run(n_chunks: usize, task: &Task<'_>) {
    let pool = pool();
    let alone = n_chunks <= 1 || pool.n_threads == 1;
    let guard = if alone { None } else { pool.enter() };
    if guard.is_none() {
        (0..n_chunks).for_each(task);
        return;
    }
    let shared = pool.shared;
    // SAFETY: only the lifetime is erased; this function outlives every use (it waits for `inside` == 0 below).
    let erased: *const Task<'static> = unsafe { std::mem::transmute(std::ptr::from_ref(task)) };
    shared.next_chunk.0.store(0, Relaxed);
    *shared.job.0.lock().unwrap_or_else(|p| p.into_inner()) = Some(Job { task: erased, n_chunks });
    shared.epoch.0.fetch_add(1, SeqCst);
    if shared.sleepers.load(SeqCst) > 0 {
        let _guard = shared.wake_lock.lock().unwrap_or_else(|p| p.into_inner());
        shared.wake.notify_all();
    }
    let mine =
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| claim(shared, task, n_chunks)));
    *shared.job.0.lock().unwrap_or_else(|p| p.into_inner()) = None;
    shared.epoch.0.fetch_add(1, SeqCst);
    let mut spins = 0u32;
    while shared.inside.0.load(Acquire) > 0 {
        spins += 1;
        // A worker that was taken off its core needs ours.
        if spins.is_multiple_of(16384) {
            std::thread::yield_now();
        }
    }
    if let Err(panic) = mine {
        std::panic::resume_unwind(panic);
    }
    assert!(shared.panicked.swap(0, SeqCst) == 0, "a kernel failed on another thread");
}

/// A raw pointer that chunks write disjoint parts of.
#[derive(Clone, Copy)]
pub struct Out(pub *mut f32);
// SAFETY: users write disjoint ranges, as each kernel states.
unsafe impl Send for Out {}
unsafe impl Sync for Out {}

impl Out {
    /// # Safety
    /// `at` lies inside the buffer this was made from, and no other chunk touches that element.
    pub unsafe fn at(self, at: usize) -> *mut f32 {
        unsafe { self.0.add(at) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_chunk_runs_once_and_panics_come_back() {
        for n in [0, 1, 2, 7, 500] {
            let counts: Vec<AtomicUsize> = (0..n).map(|_| AtomicUsize::new(0)).collect();
            for _ in 0..50 {
                run(n, &|i| {
                    counts[i].fetch_add(1, SeqCst);
                });
            }
            assert!(counts.iter().all(|c| c.load(SeqCst) == 50), "{n} chunks");
        }
        let caught = std::panic::catch_unwind(|| run(64, &|i| assert!(i != 33, "chunk 33")));
        assert!(caught.is_err());
        run(8, &|_| {});
        // A failed kernel does not leave every later one on a single core.
        let alone = Pool { shared: pool().shared, n_threads: 1, busy: Mutex::new(()) };
        let held = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _guard = alone.enter().expect("nobody is in");
            panic!("a task");
        }));
        assert!(held.is_err() && alone.busy.is_poisoned() && alone.enter().is_some());
    }

    #[test]
    fn callers_on_many_threads_do_not_disturb_each_other() {
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    for _ in 0..200 {
                        let sum = AtomicUsize::new(0);
                        run(20, &|i| {
                            sum.fetch_add(i, SeqCst);
                        });
                        assert_eq!(sum.load(SeqCst), 190);
                    }
                });
            }
        });
    }
}
