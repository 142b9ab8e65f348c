from .charts import picture as picture
from .results import figures as figures, load_ratio as load_ratio
from .scenario import Play as Play, Scenario as Scenario
