"""The paper's studies: each writes a tidy table, pictures, and a page beside the paper's numbers.

They live in the repository, outside the package that is installed, and use its public names only. From
the repository's root, `python -m experiments uci --quick` runs one of them, `python -m experiments all`
every one.
"""

from experiments.complexity import Complexity
from experiments.consistency import Consistency
from experiments.download import DataError
from experiments.opticom import OptiCom
from experiments.posterior import PosteriorStudy
from experiments.runner import StudyError, failed_runs, rewrite_page, run_study, write_index
from experiments.study import Options, Study
from experiments.synthetic import SyntheticExact, SyntheticSparse
from experiments.training import Training
from experiments.uci import UCI

STUDIES: dict[str, type[Study]] = {
    study.name: study
    for study in (
        OptiCom,
        Training,
        PosteriorStudy,
        SyntheticExact,
        SyntheticSparse,
        UCI,
        Complexity,
        Consistency,
    )
}

__all__ = [
    "STUDIES",
    "DataError",
    "Options",
    "Study",
    "StudyError",
    "failed_runs",
    "rewrite_page",
    "run_study",
    "write_index",
]
