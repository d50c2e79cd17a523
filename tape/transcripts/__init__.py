"""Transcripts of other programs: import, export, and a mirror of one that is being written.

Each of ``formats`` reads lines into steps and does nothing else. ``write_step`` writes a step to a tape through the
same calls that every program uses, ``writing`` chooses the tapes, ``importing`` takes a file, ``paths`` files and
folders, and ``mirror`` takes a session as it comes.
"""

from tape.transcripts.exports import EXPORT_FORMATS, export_transcript
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
    "import_paths",
    "import_transcript",
    "watch_paths",
]
