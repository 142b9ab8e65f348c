"""The commands `garlicfarm keys`: of the farm, of its destination, and the rotation from first step to last."""
