//! Logs as they lie on disk: which folders a path means, what is in them, and what is wrong with it. What `inspect` and
//! `verify` share.

use std::{
    collections::BTreeMap,
    fmt::Display,
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, Instant, SystemTime},
};

use backends::{
    Damage,
    local::{
        checkpoint,
        inspect::{InspectOptions, Inspection, Part, SegmentInspection, SegmentState, inspect},
        segment,
    },
};
use serde_json::{Value, json};
use wire_format::Offset;

use super::{
    fault::Fault,
    progress::{Progress, Unit},
    table,
};

const EXPECTED: &str = "give the folder of a pchannel (DATA_DIR/pchannels/NAME) or a data folder";

/// Under heavy writing and truncating one look of some sixty met a file in the middle of its reuse.
const LOOKS: usize = 3;

/// A log that was looked at.
pub struct Log {
    /// The folder's name; a server takes it for the pchannel's.
    pub name: String,
    /// The folder.
    pub folder: PathBuf,
    /// What is in it, or why it can't be read.
    pub found: Result<Inspection, String>,
    /// Its files were written to while they were read.
    pub changed: bool,
}

/// All logs at a path.
pub struct Logs {
    /// By name.
    pub logs: Vec<Log>,
    /// How long the look took.
    pub took: Duration,
}

/// Looks at every log at `path`.
pub fn look(path: &Path, options: InspectOptions) -> Result<Logs, Fault> {
    let begin = Instant::now();
    let folders = folders(path)?;
    let sizes: Vec<u64> = folders.iter().map(|folder| segment_bytes(folder)).collect();
    let mut progress = Progress::new(Unit::Bytes, Some(sizes.iter().sum()));
    let (mut logs, mut before) = (Vec::with_capacity(folders.len()), 0);
    for (folder, size) in folders.into_iter().zip(sizes) {
        logs.push(look_at(folder, options, &mut |done| {
            progress.set(before + done.min(size))
        }));
        before += size;
        progress.set(before);
    }
    Ok(Logs {
        logs,
        took: begin.elapsed(),
    })
}

/// Another look tells what is wrong from what a running server changed between the reading of two files.
fn look_at(folder: PathBuf, options: InspectOptions, progress: &mut dyn FnMut(u64)) -> Log {
    let mut once = || {
        let before = snapshot(&folder);
        let found = inspect(&folder, options, &mut |done, _| progress(done.get()));
        (found, before != snapshot(&folder))
    };
    let is_sound = |found: &io::Result<Inspection>| found.as_ref().is_ok_and(Inspection::is_sound);
    let (mut found, mut changed) = once();
    for _ in 1..LOOKS {
        if changed && !is_sound(&found) {
            (found, changed) = once();
        }
    }
    let name = folder.file_name().unwrap_or(folder.as_os_str());
    Log {
        name: name.to_string_lossy().into_owned(),
        found: found.map_err(|e| format!("{}: {e}", culprit(&folder).display())),
        folder,
        changed,
    }
}

fn snapshot(folder: &Path) -> BTreeMap<PathBuf, (u64, Option<SystemTime>)> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let facts = |entry: fs::DirEntry| {
        let facts = entry.metadata().ok()?;
        Some((entry.path(), (facts.len(), facts.modified().ok())))
    };
    entries.filter_map(facts).collect()
}

/// The file that can't be read, or else the folder.
fn culprit(folder: &Path) -> PathBuf {
    let reads = |path: &PathBuf| fs::File::open(path).and_then(|mut file| io::Read::read(&mut file, &mut [0]));
    let bad = snapshot(folder).into_keys().find(|path| reads(path).is_err());
    bad.unwrap_or_else(|| folder.to_owned())
}

fn segment_bytes(folder: &Path) -> u64 {
    let of_segments = |(path, (len, _)): (PathBuf, (u64, _))| is_segment(&path).then_some(len);
    snapshot(folder).into_iter().filter_map(of_segments).sum()
}

fn is_segment(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| segment::index_of(name).is_some())
}

/// The folders of the logs at `path`, by name.
fn folders(path: &Path) -> Result<Vec<PathBuf>, Fault> {
    let place = path.display();
    let unreadable = |e: io::Error| Fault::Failed(format!("{place}: {e}"));
    let facts = fs::metadata(path).map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => Fault::Usage(format!("{place}: {e}; {EXPECTED}")),
        _ => unreadable(e),
    })?;
    if !facts.is_dir() {
        return Err(Fault::Usage(format!("{place} is no folder; {EXPECTED}")));
    }
    let entries = children(path).map_err(unreadable)?;
    let has = |name: &str| entries.iter().any(|entry| entry.file_name().is_some_and(|n| n == name));
    if entries.iter().any(|entry| is_segment(entry)) || checkpoint::FILE_NAMES.into_iter().any(has) {
        return Ok(vec![path.to_owned()]);
    }
    let whole = fs::canonicalize(path).map_err(unreadable)?;
    let is_pchannels = |folder: &Path| folder.file_name().is_some_and(|name| name == "pchannels");
    if is_pchannels(&whole) {
        return Ok(only_folders(entries));
    }
    if whole.parent().is_some_and(is_pchannels) {
        return Ok(vec![path.to_owned()]);
    }
    if has("pchannels") {
        let below = path.join("pchannels");
        let entries = children(&below).map_err(|e| Fault::Failed(format!("{}: {e}", below.display())))?;
        return Ok(only_folders(entries));
    }
    if has("node.meta") {
        return Ok(Vec::new());
    }
    Err(Fault::Usage(format!(
        "{place} holds neither segments (NNNNNNNNNN.seg) nor a folder pchannels; {EXPECTED}"
    )))
}

fn children(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder)? {
        paths.push(entry?.path());
    }
    paths.sort_unstable();
    Ok(paths)
}

fn only_folders(mut paths: Vec<PathBuf>) -> Vec<PathBuf> {
    paths.retain(|path| path.is_dir());
    paths
}

/// Something wrong with a log, in words.
pub struct Problem {
    /// Where it is.
    pub file: PathBuf,
    /// First damaged byte, and the first behind it; none if it is not about bytes.
    pub bytes: Option<(u64, u64)>,
    /// First offset that is lost, and the first behind them.
    pub lost: Option<(Offset, Offset)>,
    /// What is wrong.
    pub what: String,
    /// What it means and what to do.
    pub advice: String,
}

impl Problem {
    /// All of it on one line.
    pub fn line(&self) -> String {
        let bytes = match self.bytes {
            Some((from, to)) => format!("bytes {from}..{to}: "),
            None => String::new(),
        };
        let lost = match self.lost {
            Some((first, next)) => {
                let count = table::counted(next.get() - first.get(), "message");
                format!("; offsets {first}..{next} are lost ({count})")
            }
            None => String::new(),
        };
        let (file, what, advice) = (self.file.display(), &self.what, &self.advice);
        format!("{file}: {bytes}{what}{lost}; {advice}")
    }
}

impl Log {
    /// Whether it was read and nothing is wrong.
    pub fn is_sound(&self) -> bool {
        self.found.as_ref().is_ok_and(Inspection::is_sound)
    }

    /// Messages that are lost, so far as that is known.
    pub fn lost(&self) -> u64 {
        self.found.as_ref().map_or(0, Inspection::lost_messages)
    }

    /// `sound`, or how bad it is.
    pub fn state(&self) -> String {
        match &self.found {
            Err(why) => format!("can't be read: {why}"),
            Ok(_) if self.is_sound() => "sound".to_owned(),
            Ok(_) => {
                let lost = match self.lost() {
                    0 => "no message lost".to_owned(),
                    some => format!("{} lost", table::counted(some, "message")),
                };
                format!("DAMAGED, {lost}")
            }
        }
    }

    /// What is wrong, and what does not matter but could surprise; each on its own line, indented.
    pub fn remarks(&self) -> String {
        let Ok(found) = &self.found else { return String::new() };
        let mut text = String::new();
        let mut add = |line: &dyn Display| text.push_str(&format!("  {line}\n"));
        problems(found).iter().for_each(|problem| add(&problem.line()));
        for segment in &found.segments {
            if let Some(detail) = &segment.torn_tail {
                add(&format!(
                    "{}: from byte {} on there is a write that was not finished ({detail}); harmless after a crash: it \
                     was not acked, and a start cuts it off; without a crash the last block is damaged",
                    segment.file.display(),
                    segment.used.get()
                ));
            }
        }
        for file in &found.others {
            add(&format!("{}: not a file of the log; it is left alone", file.display()));
        }
        if let Some(other) = found.pchannel.as_ref().filter(|stored| **stored != self.name) {
            add(&format!(
                "its messages were written to the pchannel {other}, but a server takes the folder's name; was it renamed?"
            ));
        }
        if self.changed && !self.is_sound() {
            add(&"a server wrote to it while it was read: stop the server and look again to be certain");
        }
        text
    }
}

impl Logs {
    /// Nothing, or why the command must say that it failed. The report has been printed, or nobody reads it any more.
    pub fn verdict(&self, path: &Path, printed: Result<(), Fault>) -> Result<(), Fault> {
        let count = |is: fn(&Log) -> bool| self.logs.iter().filter(|log| is(log)).count() as u64;
        let damaged = count(|log| log.found.is_ok() && !log.is_sound());
        let unreadable = count(|log| log.found.is_err());
        if damaged + unreadable == 0 {
            return printed;
        }
        let of_all = |some: u64, what: &str| {
            let all = table::counted(self.logs.len() as u64, "pchannel");
            (some > 0).then(|| format!("{} of {all} {what}", table::count(some)))
        };
        let parts = [
            of_all(damaged, "damaged"),
            (damaged > 0).then(|| format!("{} lost", table::counted(self.lost(), "message"))),
            of_all(unreadable, "can't be read"),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        Err(Fault::Failed(format!("{}: {}", path.display(), parts.join(", "))))
    }

    /// Messages that are lost in all of them.
    pub fn lost(&self) -> u64 {
        self.logs.iter().map(Log::lost).sum()
    }
}

/// First kept offset, and the one behind the last.
pub fn extent(found: &Inspection) -> (Offset, Offset) {
    let mut used = found.segments.iter().filter(|segment| is_used(segment)).peekable();
    let oldest = used.peek().map_or(Offset::ZERO, |segment| segment.base_offset);
    let first = found.checkpoint.map_or(oldest, |checkpoint| checkpoint.first_offset);
    let upto = found.checkpoint.map_or(Offset::ZERO, |checkpoint| checkpoint.upto);
    (
        first,
        used.map(|segment| segment.next_offset)
            .fold(first.max(upto), Offset::max),
    )
}

/// Whether a segment holds blocks of the log.
pub fn is_used(segment: &SegmentInspection) -> bool {
    matches!(segment.state, SegmentState::Sealed | SegmentState::Open)
}

/// A log as JSON, without its segments.
pub fn facts(log: &Log) -> Value {
    let found = match &log.found {
        Ok(found) => found,
        Err(error) => {
            let folder = log.folder.display().to_string();
            return json!({ "name": log.name, "folder": folder, "sound": false, "error": error, "problems": [] });
        }
    };
    let (first, next) = extent(found);
    let problem = |problem: &Problem| {
        json!({
            "file": problem.file.display().to_string(),
            "from": problem.bytes.map(|(from, _)| from),
            "to": problem.bytes.map(|(_, to)| to),
            "first_offset": problem.lost.map(|(first, _)| first.get()),
            "next_offset": problem.lost.map(|(_, next)| next.get()),
            "detail": problem.what,
            "advice": problem.advice,
        })
    };
    json!({
        "name": log.name,
        "folder": log.folder.display().to_string(),
        "sound": log.is_sound(),
        "error": null,
        "stored_name": found.pchannel,
        "first_offset": first.get(),
        "next_offset": next.get(),
        "messages": found.segments.iter().map(|segment| segment.messages).sum::<u64>(),
        "lost_messages": log.lost(),
        "problems": problems(found).iter().map(problem).collect::<Vec<_>>(),
        "changed_meanwhile": log.changed,
    })
}

/// Everything that makes a log unsound.
pub fn problems(found: &Inspection) -> Vec<Problem> {
    let mut all: Vec<Problem> = found
        .damaged_checkpoints
        .iter()
        .map(|(file, detail)| {
            let instead = match &found.checkpoint {
                Some(other) => format!(
                    "a start uses checkpoint {} instead and reads more of the log",
                    other.sequence
                ),
                None => {
                    "a start reads the whole log, and may store a batch twice that a producer sends again".to_owned()
                }
            };
            Problem {
                file: file.clone(),
                bytes: None,
                lost: None,
                what: format!("this checkpoint is damaged, or its writing was cut off ({detail})"),
                advice: format!("no message is lost: {instead}; the next checkpoint writes it anew"),
            }
        })
        .collect();
    let first_kept = found
        .checkpoint
        .map_or(Offset::ZERO, |checkpoint| checkpoint.first_offset);
    for segment in &found.segments {
        all.extend(part_problems(segment));
        all.extend(segment.damage.iter().map(|damage| damaged(damage, first_kept)));
    }
    all.extend(found.gaps.iter().map(|gap| damaged(gap, first_kept)));
    all
}

fn part_problems(segment: &SegmentInspection) -> Vec<Problem> {
    let problem = |what: String, advice: &str| Problem {
        file: segment.file.clone(),
        bytes: None,
        lost: None,
        what,
        advice: advice.to_owned(),
    };
    if segment.state == SegmentState::Unknown {
        let what = "neither header nor footer nor first block tells what it holds".to_owned();
        return vec![problem(
            what,
            "restore it from a copy while the server is stopped; offsets lost with it are told as missing",
        )];
    }
    let parts = [
        ("header", &segment.header),
        ("footer", &segment.footer),
        ("trailer", &segment.trailer),
    ];
    let damaged = parts.into_iter().filter_map(|(name, part)| match part {
        Part::Damaged(detail) => Some(problem(
            format!("the {name} is damaged ({detail})"),
            "no message is lost by that: the blocks tell the same; check the disk",
        )),
        Part::Whole | Part::Absent => None,
    });
    damaged.collect()
}

fn damaged(damage: &Damage, first_kept: Offset) -> Problem {
    let (first, next) = (damage.first_offset, damage.next_offset);
    let advice = if next <= first {
        "no message is lost; check the disk".to_owned()
    } else if next <= first_kept {
        format!("they were truncated, the log begins at {first_kept}: nobody reads them; check the disk")
    } else {
        format!(
            "readers get an error there and go on with --from offset:{next}; to have them back, stop the server and \
             restore the file from a copy; check the disk"
        )
    };
    Problem {
        file: damage.file.clone(),
        bytes: (damage.to > damage.from).then_some((damage.from, damage.to)),
        lost: (next > first).then_some((first, next)),
        what: damage.detail.clone(),
        advice,
    }
}
