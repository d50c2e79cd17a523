"""Transcripts of other programs: import, export, and a mirror of one that is being written.

Each of ``formats`` reads lines into steps and does nothing else. ``composing`` makes of a step what a tape records of
it, without a tape; ``write_step`` writes one by itself, through the calls that every program uses. ``writing`` chooses
the tapes, ``importing`` takes a file, ``paths`` files and folders, ``reading_process`` reads them ahead in processes of
their own, and ``mirror`` takes a session as it comes.
"""

from tape.transcripts.exports import EXPORT_FORMATS, export_transcript
from tape.transcripts.exports.runs import genai_message
from tape.transcripts.importing import FORMATS, ImportedTranscript, import_transcript
from tape.transcripts.mirror import ClaudeMirror, claude_lines
from tape.transcripts.paths import ImportedFile, import_paths, watch_paths
from tape.transcripts.steps import ImportProblem

__all__ = [
    "EXPORT_FORMATS",
    "FORMATS",
    "ClaudeMirror",
    "ImportProblem",
    "ImportedFile",
    "ImportedTranscript",
    "claude_lines",
    "export_transcript",
    "genai_message",
    "import_paths",
    "import_transcript",
    "watch_paths",
]
